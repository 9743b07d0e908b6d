"""The pages of sessions and of the GPUs that their cells borrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.control.ports import JobFilter
from carrel.core.control.sessions import DEFAULT_ENVIRONMENT, SessionOptions, Sessions
from carrel.core.domain.errors import CarrelError, Conflict, Denied, Impossible, Invalid, NotFound, Unavailable
from carrel.core.domain.qos import JobKind
from carrel.core.domain.session import SessionKind
from carrel.core.domain.units import parse_duration, parse_size
from carrel.core.domain.user import Caller
from carrel.core.gpu_use import told
from carrel.core.policy.explain import names_idle_sessions
from carrel.core.policy.partitions import partitions_for
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.errors import problem_of
from carrel.lab.gateway.own_notebooks import own_notebooks
from carrel.lab.gateway.views import lending_view, session_view
from carrel.lab.portal.entrance import checked_form
from carrel.lab.portal.owner_strips import Week, week_of
from carrel.lab.portal.requests import caller_of, job_id_of
from carrel.lab.portal.templating import Templates
from carrel.lab.portal.timelines import going, memory_of, strip_of
from carrel.lab.portal.words import written
from carrel.wire.v1 import JobView, SessionView, TenantView
from carrel.wire.v1.sessions import Lending

#: Sessions among which the last notebook is looked for.
_LATEST = 10


class NotebookPages:
    """``/notebooks`` and ``/gpus``, with their parts and buttons."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The routes of these pages; none in a lab without sessions."""
        if self._gateway.sessions is None:
            return []
        one = "/notebooks/{job_id}"
        return [
            Route("/notebooks", self.list, methods=["GET"]),
            Route("/notebooks", self.start, methods=["POST"]),
            Route(one, self.one, methods=["GET"]),
            Route(f"{one}/open", self.open, methods=["POST"]),
            Route(f"{one}/end", self.end, methods=["POST"]),
            Route("/gpus", self.gpus, methods=["GET"]),
        ]

    # ---- pages

    def list(self, request: Request) -> Response:
        """The caller's sessions, and a form to start one. With ``part=live`` only what changes."""
        return self._list(request, last_settings(self._gateway, caller_of(request)), None)

    def _list(self, request: Request, fields: dict[str, str], problem: CarrelError | None) -> Response:
        """The same with what was asked for and cannot be, and why."""
        caller = caller_of(request)
        last_event = self._gateway.lab.last_event_id()
        policy = self._gateway.lab.policy
        shown = [self._show(caller, job.id) for job in self._sessions.list(caller)]
        part = request.query_params.get("part") == "live"
        return self._look.page(
            request,
            "notebooks_live.html" if part else "notebooks.html",
            status=problem_of(problem)[0].status if problem is not None else 200,
            fields=fields,
            problem=problem,
            sessions=shown,
            offers_vscode=self._sessions.offers_vscode,
            own=[] if part else own_notebooks(self._sessions.files, caller),
            qos=list(policy.qos.values()),
            partitions=partitions_for(JobKind.SESSION, policy.qos, policy.partitions),
            last_event=last_event,
        )

    def one(self, request: Request) -> Response:
        """One session: why it waits, what is being prepared, the way in. With ``part=live`` only what changes."""
        caller = caller_of(request)
        last_event = self._gateway.lab.last_event_id()
        session = self._show(caller, job_id_of(request))
        part = request.query_params.get("part") == "live"
        return self._look.page(
            request,
            "notebook_live.html" if part else "notebook.html",
            session=session,
            idle=idle_sessions(self._gateway, caller, session.job),
            cost=self._cost(caller, session.job.id),
            # A user who has just started it wants to be in it.
            go=request.query_params.get("go") == "yes",
            at=request.query_params.get("path", "")[:500],
            last_event=last_event,
        )

    def gpus(self, request: Request) -> Response:
        """Who has which GPU now. With ``part=live`` only what changes."""
        caller = caller_of(request)
        kept, slices = self._gateway.lab.machines.kept_devices(), self._gateway.free_slices(caller)
        lending = lending_view(self._sessions.gpus(caller), self._sessions.nodes(caller), kept, slices)
        part = request.query_params.get("part") == "live"
        now = self._look.now().timestamp()
        jobs, others = self._gateway.lab.machines.jobs_in_line(caller)
        return self._look.page(
            request,
            "gpus_live.html" if part else "gpus.html",
            lending=lending,
            rows=device_rows(lending, now),
            moves=going(lending, now),
            jobs=[self._gateway.show(job, "") for job in jobs],
            others=others,
            # Everything as of then, on the clock of the broker that said it.
            nodes=[(node, device_rows(node, now - node.age), going(node, now - node.age)) for node in lending.nodes],
            now=now,
            week=None if part else self._week(caller),
        )

    # ---- buttons

    async def start(self, request: Request) -> Response:
        """Start a session, and show how it comes up."""
        fields = await checked_form(request, self._look)

        def start() -> Response:
            try:
                submitted = self._sessions.start(caller_of(request), asked_in(fields))
            except (Invalid, Impossible, Denied, NotFound, Conflict) as error:
                return self._list(request, fields, error)
            return RedirectResponse(f"/notebooks/{submitted.job.id}?go=yes", 303)

        return await to_thread.run_sync(start)

    async def open(self, request: Request) -> Response:
        """Go to the session. It is another origin, to which a form must not lead: the page that is shown leads there."""
        fields = await checked_form(request, self._look)
        base, path = str(request.base_url), fields.get("path", "")
        link = await to_thread.run_sync(lambda: self._sessions.open(caller_of(request), job_id_of(request), base=base, path=path))
        answer = self._look.page(request, "opening.html", link=link)
        answer.headers["Referrer-Policy"] = "no-referrer"
        return answer

    async def end(self, request: Request) -> Response:
        """End the session; its files stay."""
        await checked_form(request, self._look)
        caller, job_id = caller_of(request), job_id_of(request)

        def cancel() -> None:
            self._sessions.get(caller, job_id)
            self._gateway.lab.cancel(caller, job_id)

        await to_thread.run_sync(cancel)
        return RedirectResponse("/notebooks", 303)

    # ---- parts

    @property
    def _sessions(self) -> Sessions:
        if self._gateway.sessions is None:  # pragma: no cover - then there is no route
            raise Unavailable("This lab offers no sessions.")
        return self._gateway.sessions

    def _week(self, caller: Caller) -> Week:
        """The holders of the GPUs of the lab's own machines; a cluster's brokers do not tell of what is over."""
        nodes = self._gateway.lab.machines.devices(caller)
        several = len(nodes) > 1
        called = [
            (one.device.uuid, f"{status.node.name} GPU {one.device.index}" if several else f"GPU {one.device.index}")
            for status in nodes
            for one in status.devices
        ]
        return week_of(self._gateway.lab.gpu_use.week(caller), called)

    def _cost(self, caller: Caller, job_id: int) -> str:
        """What the session's cells had, in words."""
        times = self._gateway.lab.gpu_use.of_session(self._gateway.lab.job(caller, job_id))
        if times is None:
            return ""
        busy = 100 * times.busy / times.measured if times.measured else None
        return told(times.cells, times.gpu_seconds, busy, times.seconds)

    def _show(self, caller: Caller, job_id: int) -> SessionView:
        job, spec = self._sessions.get(caller, job_id)
        return session_view(self._gateway.show(job, "", alternatives=True), spec, self._sessions.status(job))


def idle_sessions(gateway: Gateway, caller: Caller, job: JobView) -> Sequence[SessionView]:
    """The caller's idle sessions that a job waits for, by what was decided about it."""
    sessions = gateway.sessions
    if sessions is None or job.owner != caller.user.subject or job.state != "PENDING" or not names_idle_sessions(job.message):
        return ()
    found = []
    for one in sessions.list(caller):
        one, spec = sessions.get(caller, one.id)
        view = session_view(gateway.show(one, ""), spec, sessions.status(one))
        if view.idle_since is not None:
            found.append(view)
    return found


def last_settings(gateway: Gateway, caller: Caller) -> dict[str, str]:
    """What the caller asked for when they last started a notebook, as fields of the form; empty where they never did."""
    if gateway.sessions is None:
        return {}
    for job in gateway.lab.jobs(caller, JobFilter(owner=caller.user.subject, kind=JobKind.SESSION), limit=_LATEST):
        _, spec = gateway.sessions.get(caller, job.id)
        if spec.kind is SessionKind.NOTEBOOK and not spec.hub:
            said = {
                "gpus": str(spec.gpus),
                "environment": "" if spec.environment == DEFAULT_ENVIRONMENT else spec.environment,
                "image": spec.image,
                "qos": job.qos,
                "partition": job.partition,
                "memory": written("memory", job.resources.memory),
                "time": written("time", job.resources.time),
                "reserve": "yes" if spec.reserve else "",
            }
            return {name: value for name, value in said.items() if value}
    return {}


def asked_in(fields: dict[str, str]) -> SessionOptions:
    """What a form asks for. Raises `Invalid`."""
    kind = fields.get("kind", "notebook")
    if kind not in {kind.value for kind in SessionKind}:
        raise Invalid(f'There is no session of kind "{kind[:40]}".', remedy="Use the form on the page.")

    def text(name: str) -> str | None:
        return fields.get(name, "").strip() or None

    gpus = text("gpus")
    if gpus is not None and not (gpus.isascii() and gpus.isdigit() and len(gpus) < 6):
        raise Invalid(f'"{gpus[:40]}" is not a number of GPUs.', remedy="Write 0, 1, 2 …")
    name = text("name")
    if name is not None and not (name.isprintable() and len(name) <= 255):
        raise Invalid("The name cannot be used.", remedy="Use up to 255 printable characters.")
    time, memory = text("time"), text("memory")
    return SessionOptions(
        kind=SessionKind(kind),
        name=name,
        environment=text("environment") or "default",
        image=text("image") or "",
        gpus=None if gpus is None else int(gpus),
        reserve=fields.get("reserve") == "yes",
        qos=text("qos"),
        partition=text("partition"),
        memory=None if memory is None else parse_size(memory),
        time=None if time is None else parse_duration(time),
    )


def device_rows(lending: Lending, now: float) -> list[dict[str, Any]]:
    """Each device with its lease and residents, its memory and its last hour, for the template."""
    tenants = {tenant.id: tenant for tenant in lending.tenants}
    rows = []
    for device in lending.devices:
        lease = next((lease for lease in lending.leases if lease.id == device.lease), None)
        shares = {share.tenant: share for share in device.by}
        rows.append(
            {
                "device": device,
                "lease": lease,
                "holder": tenants.get(lease.tenant) if lease is not None else None,
                "residents": [(tenants[name], shares.get(name)) for name in device.residents if name in tenants],
                "memory": memory_of(lending, device, _name),
                "strip": strip_of(lending, device, now),
            }
        )
    return rows


def _name(tenant: TenantView) -> str:
    """The tenant, for a text."""
    if tenant.mine or tenant.owner:
        return (tenant.label or f"job {tenant.job}") + ("" if tenant.mine else f" ({tenant.owner})")
    return "somebody else"
