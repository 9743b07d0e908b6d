"""The signed-in pages: the lab at a glance, one job, and the reference of the API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from anyio import to_thread
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from carrel.core.control.ports import AttemptRow, JobFilter
from carrel.core.control.views import LogChunk
from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.job import ACTIVE, ENDED, Job, JobState
from carrel.core.domain.nouns import ANNOUNCEMENTS, RESERVATIONS
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, allowed, of_job
from carrel.lab.gateway.boundary import DATA_POLICY
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.events import EventFilter
from carrel.lab.gateway.gate import Grant
from carrel.lab.gateway.routes.events import answer, start_of
from carrel.lab.gateway.routes.files import download
from carrel.lab.gateway.views import node_view
from carrel.lab.portal.entrance import checked_form
from carrel.lab.portal.failure import Failure, failure_of
from carrel.lab.portal.job_course import strips_of, use_plots
from carrel.lab.portal.log_search import look_for
from carrel.lab.portal.notebooks import idle_sessions, last_settings
from carrel.lab.portal.outputs import how_shown
from carrel.lab.portal.requests import caller_of, job_id_of, number_in
from carrel.lab.portal.step_graph import graph_of
from carrel.lab.portal.templating import Templates
from carrel.lab.portal.words import log_tail
from carrel.wire.v1 import JobView

_PAGE = 50
#: Bytes of log that a page begins with; what comes after is streamed, what was before is a download.
_TAIL = 64 * 1024
_PIECE = 1024 * 1024
#: Bytes at the end of the log of a job that failed, of which its last lines are shown; characters of what is looked for in a log.
_LAST_WORDS, _WANTED = 8 * 1024, 200
#: Attempts whose course is shown.
_ATTEMPTS = 10
#: Pictures among the outputs that a job's page shows small.
_PICTURES = 8
#: A reservation that begins within so many seconds has a notice of its own.
_SOON = 86400.0
#: Which jobs the list shows: name in the address -> (name on the page, states; none means all).
_SHOWN: dict[str, tuple[str, frozenset[JobState]]] = {
    "all": ("All", frozenset()),
    "active": ("Waiting and running", ACTIVE),
    "ended": ("Ended", ENDED),
}
#: What a job's page shows or offers only to those who may.
_OF_A_JOB = (Action.READ_JOB, Action.CANCEL_JOB, Action.REPEAT_JOB, Action.ENTER_SESSION, Action.SEE_SWEEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob:
    """A job with what only the pages want to know."""

    view: JobView
    #: Seconds that its command has run, or None before it does.
    ran: float | None


class JobPages:
    """``/`` and ``/jobs/{id}``, with their parts, streams and buttons."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._lab = gateway.lab
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The routes of these pages."""
        job = "/jobs/{job_id}"
        return [
            Route("/", self.home, methods=["GET"]),
            Route("/events", self.events, methods=["GET"]),
            Route(job, self.job, methods=["GET"]),
            Route(f"{job}/events", self.events, methods=["GET"]),
            Route(f"{job}/course", self.course, methods=["GET"]),
            Route(f"{job}/log", self.log, methods=["GET"]),
            Route(f"{job}/outputs/{{path:file}}", self.output, methods=["GET"]),
            Route(f"{job}/record", self.record, methods=["GET"]),
            Route(f"{job}/cancel", self.cancel, methods=["POST"]),
            Route(f"{job}/rerun", self.rerun, methods=["POST"]),
            Route("/arrays/{job_id}/cancel", self.cancel_array, methods=["POST"]),
        ]

    # ---- pages

    def home(self, request: Request) -> Response:
        """Devices and jobs. With ``part=live`` only what changes, for the script that keeps the page fresh."""
        caller = caller_of(request)
        chosen = request.query_params.get("show", "all")
        if chosen not in _SHOWN:
            raise Invalid(f'"{chosen[:40]}" is not a list of jobs.', remedy=f"There are: {', '.join(_SHOWN)}.")
        may_see_all = bool(allowed(caller, Action.LIST_JOBS))
        everybody = may_see_all and request.query_params.get("owner", "all") == "all"
        before, array_id = (number_in(request.query_params.get(name)) for name in ("before", "array"))
        last_event = self._lab.last_event_id()  # first, so that no change falls between the page and its stream
        which = JobFilter(owner=None if everybody else caller.user.subject, states=_SHOWN[chosen][1], array_id=array_id)
        jobs = self._lab.jobs(caller, which, before=before, limit=_PAGE + 1)
        query = {"show": chosen, "owner": "all" if everybody else "me"} | ({} if array_id is None else {"array": str(array_id)})
        nodes = [node_view(status) for status in self._lab.machines.devices(caller)]
        part = request.query_params.get("part") == "live"
        free, is_so = self._lab.free(caller)
        return self._look.page(
            request,
            "live.html" if part else "home.html",
            nodes=nodes,
            free=free,
            free_is_so=is_so,
            # Worked out of what everybody has used: not for each change of the list.
            standing=None if part else self._lab.standing(caller),
            hint="" if part else self._lab.worth_changing(caller),
            notebook={} if part else last_settings(self._gateway, caller),
            announcements=self._lab.keeper(ANNOUNCEMENTS).list(caller),
            reservations=[(one, one.begin <= self._lab.clock()) for one in self._lab.keeper(RESERVATIONS).list(caller)],
            soon=self._lab.clock() + _SOON,
            simulated=any(device.simulated for node in nodes for device in node.devices),
            jobs=[self._show(self._gateway.show(job, "")) for job in jobs[:_PAGE]],
            older="/?" + urlencode(query | {"before": jobs[_PAGE - 1].id}) if len(jobs) > _PAGE else None,
            newest="/?" + urlencode(query) if before is not None else None,
            shown={name: (label, "/?" + urlencode(query | {"show": name})) for name, (label, _) in _SHOWN.items()},
            chosen=chosen,
            array_id=array_id,
            everybody=everybody,
            may_see_all=may_see_all,
            owners={"all": "/?" + urlencode(query | {"owner": "all"}), "me": "/?" + urlencode(query | {"owner": "me"})},
            last_event=last_event,
            live="/?" + urlencode(query | {"part": "live"} | ({"before": before} if before is not None else {})),
        )

    def job(self, request: Request) -> Response:
        """One job. With ``part=live`` only what changes."""
        caller, job_id = caller_of(request), job_id_of(request)
        last_event = self._lab.last_event_id()
        job = self._lab.job(caller, job_id)
        task, attempts = self._lab.task(caller, job_id), self._lab.attempts(caller, job_id)
        part = request.query_params.get("part") == "live"
        values: dict[str, Any] = {}
        may = {action.name: bool(allowed(caller, action, of_job(job))) for action in _OF_A_JOB}
        if not part and may["READ_JOB"]:
            chunk = self._log_tail(caller, job, attempts)
            text, end = log_tail(chunk.data, chunk.offset)
            values = {"log": text, "log_end": end, "log_cut": chunk.offset > 0, "last_event": last_event}
            wanted = request.query_params.get("find", "")[:_WANTED]
            values["found"] = look_for(wanted, self._pieces(caller, job_id, None)) if wanted else None
        outputs = self._lab.produced.outputs(caller, job_id) if job.state.ended and may["READ_JOB"] else []
        view = self._gateway.show(job, "", alternatives=True)
        return self._look.page(
            request,
            "job_live.html" if part else "job.html",
            idle=idle_sessions(self._gateway, caller, view),
            verified=self._lab.verifications.of(job_id),
            hint=attempts[-1].advice if attempts else "",
            run_page=self._gateway.run_page(job),
            waited=attempts[0].leased_at - job.submitted_at if attempts else None,
            prepared=attempts[-1].started_at - attempts[-1].leased_at if attempts and attempts[-1].started_at else None,
            job=self._show(view),
            task=task,
            attempts=attempts,
            outputs=outputs,
            pictures=[one for one in outputs if one.removed_at is None and how_shown(one.path) == "picture"][:_PICTURES],
            changeable=bool(task.snapshot) and task.step is None and self._lab.has_snapshot(caller, task.snapshot),
            may=may,
            own=may["ENTER_SESSION"],
            failure=self._failure(caller, job, attempts) if may["READ_JOB"] else None,
            **(self._course(caller, job, attempts) if may["READ_JOB"] and not part else {}),
            **graph_of(self._lab.steps(caller, job)),
            array_goes_on=self._array_goes_on(caller, job),
            sweep_removed=task.sweep is not None and self._gateway.sweeps.removed(task.sweep),
            **values,
        )

    def course(self, request: Request) -> Response:
        """The part of a job's page that says how far it is and what it uses."""
        caller, job_id = caller_of(request), job_id_of(request)
        job = self._lab.job(caller, job_id, Action.READ_JOB)
        values = self._course(caller, job, self._lab.attempts(caller, job_id))
        return self._look.page(request, "job_course.html", job=self._show(self._gateway.show(job, "")), **values)

    # ---- streams and files

    async def events(self, request: Request) -> Response:
        """The event stream, as the API has it."""
        grant: Grant = request.state.grant
        job_id = job_id_of(request) if "job_id" in request.path_params else None
        after = number_in(request.query_params.get("after")) or 0
        which = EventFilter(
            job_id=job_id,
            after=start_of(after, request.headers.get("last-event-id")),
            types=frozenset(request.query_params.getlist("type")) or None,
        )
        return await answer(request, self._gateway, grant, which, 200)

    def log(self, request: Request) -> Response:
        """The whole log of an attempt, as a download."""
        caller, job_id = caller_of(request), job_id_of(request)
        attempt = number_in(request.query_params.get("attempt"))
        first = self._lab.produced.log_range(caller, job_id, attempt=attempt, limit=0)
        name = f"job-{job_id}-{first.attempt}.log"
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "Content-Security-Policy": DATA_POLICY,
        }
        return StreamingResponse(
            self._pieces(caller, job_id, first.attempt), headers=headers, media_type="text/plain; charset=utf-8"
        )

    def output(self, request: Request) -> Response:
        """One output, as a download."""
        return download(self._gateway, caller_of(request), job_id_of(request), request.path_params["path"])

    def record(self, request: Request) -> Response:
        """The record, as a download."""
        job_id = job_id_of(request)
        text = json.dumps(self._lab.produced.record(caller_of(request), job_id), indent=2)
        headers = {"Content-Disposition": f'attachment; filename="job-{job_id}-record.json"'}
        return Response(text, headers=headers, media_type="application/json")

    # ---- buttons

    async def cancel(self, request: Request) -> Response:
        """Ask for the job's end."""
        await checked_form(request, self._look)
        job = await to_thread.run_sync(self._lab.cancel, caller_of(request), job_id_of(request))
        return RedirectResponse(f"/jobs/{job.id}", 303)

    async def cancel_array(self, request: Request) -> Response:
        """Ask for the end of all jobs of an array."""
        await checked_form(request, self._look)
        jobs = await to_thread.run_sync(self._lab.cancel_array, caller_of(request), job_id_of(request))
        return RedirectResponse(f"/jobs/{jobs[0].id}", 303)

    async def rerun(self, request: Request) -> Response:
        """Run the same task again."""
        await checked_form(request, self._look)
        job = await to_thread.run_sync(self._lab.repeating.rerun, caller_of(request), job_id_of(request))
        return RedirectResponse(f"/jobs/{job.id}", 303)

    # ---- parts

    def _log_tail(self, caller: Caller, job: Job, attempts: Any) -> LogChunk:
        """The last of the log up to where the events have told it, so that the stream goes on exactly there."""
        if not attempts and job.state.ended:  # what it needed before its place could not be had
            return self._lab.produced.log_range(caller, job.id, offset=-_TAIL, limit=_TAIL)
        if not attempts:
            return LogChunk(attempt=0, offset=0, data=b"", size=0)
        last: AttemptRow = attempts[-1]
        start = max(0, last.log_size - _TAIL)
        return self._lab.produced.log_range(caller, job.id, attempt=last.number, offset=start, limit=last.log_size - start)

    def _pieces(self, caller: Caller, job_id: int, attempt: int | None) -> Iterator[bytes]:
        """The whole log of an attempt."""
        position = 0
        while chunk := self._lab.produced.log_range(caller, job_id, attempt=attempt, offset=position, limit=_PIECE).data:
            yield chunk
            position += len(chunk)

    def _course(self, caller: Caller, job: Job, attempts: Sequence[AttemptRow]) -> dict[str, Any]:
        """The course of its last attempts, and the use of the very last one."""
        last = [(row, self._lab.produced.course(caller, job.id, row.number)) for row in attempts[-_ATTEMPTS:]]
        return {
            "strips": strips_of(job, last, self._lab.clock()),
            "use": use_plots(last[-1][1], job.resources) if last else [],
        }

    def _failure(self, caller: Caller, job: Job, attempts: Sequence[AttemptRow]) -> Failure | None:
        if not job.state.ended:
            return None
        try:
            tail = self._lab.produced.log_range(caller, job.id, offset=-_LAST_WORDS, limit=_LAST_WORDS)
        except NotFound:  # it is not kept any more
            return failure_of(job, attempts[-1] if attempts else None, "")
        return failure_of(job, attempts[-1] if attempts else None, log_tail(tail.data, tail.offset)[0])

    def _array_goes_on(self, caller: Caller, job: Job) -> bool:
        """True when the job is an element of an array of which not all have ended."""
        if job.element is None or not allowed(caller, Action.CANCEL_JOB, of_job(job)):
            return False
        others = JobFilter(owner=job.owner, states=ACTIVE, array_id=job.element.array_id)
        return not job.state.ended or bool(self._lab.jobs(caller, others, limit=1))

    def _show(self, view: JobView) -> ShownJob:
        until: datetime = view.ended_at or view.suspended_at or self._look.now()
        ran = (until - view.started_at).total_seconds() - view.suspended_seconds if view.started_at else None
        return ShownJob(view=view, ran=ran)


class ReferencePage:
    """``/docs``: the published OpenAPI document, readable."""

    def __init__(self, app: FastAPI, look: Templates) -> None:
        self._app = app
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The route of the page."""
        return [Route("/docs", self.page, methods=["GET"])]

    def page(self, request: Request) -> Response:
        """Every operation with its parameters, body and answers."""
        document = self._app.openapi()
        operations = [
            {"method": method.upper(), "path": path, **operation}
            for path, found in document["paths"].items()
            for method, operation in found.items()
        ]
        return self._look.page(request, "reference.html", operations=operations, about=document["info"]["description"])
