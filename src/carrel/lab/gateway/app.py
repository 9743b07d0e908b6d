"""Puts the gateway together, and publishes its OpenAPI document."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import RedirectResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Scope

from carrel import __version__
from carrel.core.comparison import Metrics
from carrel.core.control.baselines import Baselines, BaselineStore
from carrel.core.control.conversations import Conversations
from carrel.core.control.keepers import Memory
from carrel.core.control.lab import Lab
from carrel.core.control.pool_loop import PoolLoop
from carrel.core.control.pool_ports import CallStore
from carrel.core.control.pools import Pools
from carrel.core.control.sessions import Sessions
from carrel.core.control.sweep_ports import Study, SweepStore
from carrel.core.control.sweeps import Sweeps
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import LaunchWalls
from carrel.core.domain.nouns import CHALLENGE_NOTICES, CHALLENGE_SAMPLES, CHALLENGES, SUBMISSIONS, TEAMS
from carrel.core.domain.storage import Room
from carrel.core.snapshots import SnapshotStore
from carrel.lab.audit import AuditLog
from carrel.lab.gateway.auditing import Auditing
from carrel.lab.gateway.body_files import BodyFiles
from carrel.lab.gateway.boundary import Boundary, storage_header
from carrel.lab.gateway.call_bodies import CallBodies
from carrel.lab.gateway.challenge_finals import ChallengeFinals
from carrel.lab.gateway.challenge_organising import Organising
from carrel.lab.gateway.challenge_participating import Participating
from carrel.lab.gateway.challenge_programs import ChallengePrograms
from carrel.lab.gateway.challenge_publishing import Publishing
from carrel.lab.gateway.challenge_rescoring import Rescoring
from carrel.lab.gateway.challenge_runs import ChallengeRuns
from carrel.lab.gateway.challenge_samples import ChallengeSamples
from carrel.lab.gateway.challenge_sent import SentSubmissions
from carrel.lab.gateway.challenges import Challenges
from carrel.lab.gateway.comparing import Comparing, no_metrics
from carrel.lab.gateway.context import Gateway, Pages, TrackingStatus
from carrel.lab.gateway.drift import Drifts
from carrel.lab.gateway.environments import Environments
from carrel.lab.gateway.errors import MEDIA_TYPE, invalid_request, problem_of, problem_of_framework, problem_response
from carrel.lab.gateway.explaining import Explaining
from carrel.lab.gateway.gate import Gate, Zone, Zones
from carrel.lab.gateway.hosts import Hosts
from carrel.lab.gateway.matrices import Matrices
from carrel.lab.gateway.new_code import NEW_TASK, Incoming
from carrel.lab.gateway.pool_workers import PoolWorkers
from carrel.lab.gateway.rates import Rates
from carrel.lab.gateway.routes import arrays, baselines, cells, comparison, events, files, interrupts, jobs, people
from carrel.lab.gateway.routes import audit as audit_routes
from carrel.lab.gateway.routes import bodies as body_routes
from carrel.lab.gateway.routes import challenges as challenge_routes
from carrel.lab.gateway.routes import environments as environment_routes
from carrel.lab.gateway.routes import issuer as issuer_routes
from carrel.lab.gateway.routes import lab as lab_routes
from carrel.lab.gateway.routes import pools as pool_routes
from carrel.lab.gateway.routes import reports as report_routes
from carrel.lab.gateway.routes import retention as retention_routes
from carrel.lab.gateway.routes import secrets as secret_routes
from carrel.lab.gateway.routes import sessions as session_routes
from carrel.lab.gateway.routes import ssh as ssh_routes
from carrel.lab.gateway.routes import sweeps as sweep_routes
from carrel.lab.gateway.routes import workers as worker_routes
from carrel.lab.gateway.routes.nouns import ROUTES as NOUN_ROUTES
from carrel.lab.gateway.rule_previews import RulePreviews
from carrel.lab.gateway.settings import GatewaySettings
from carrel.lab.gateway.ssh import SshAccess
from carrel.lab.gateway.streams import Doorbell, Streams
from carrel.lab.gateway.submission import Submissions
from carrel.lab.gateway.trial_jobs import TrialJobs
from carrel.lab.gateway.views import disk_view
from carrel.lab.signin import Issuer
from carrel.node.environments.named import NamedEnvironments
from carrel.node.staging.git_hosts import GitHosts
from carrel.wire.v1 import API, HealthView, Problem


def create_app(
    lab: Lab,
    *,
    settings: GatewaySettings,
    snapshots: SnapshotStore,
    environments: NamedEnvironments,
    calls: CallStore,
    sweeps: tuple[SweepStore, Study],
    baseline_store: BaselineStore,
    challenges: tuple[Memory, Path, Path],
    run_of: Callable[[int], tuple[str, str] | None] = lambda _job_id: None,
    tracking_status: Callable[[], TrackingStatus] = lambda: TrackingStatus(state="off"),
    tracking_proxy: ASGIApp | None = None,
    run_metrics: Callable[[str, str], Metrics] = no_metrics,
    pages: Pages | None = None,
    sessions: Sessions | None = None,
    walls: Callable[[str], LaunchWalls | None] = lambda _owner: None,
    audit: AuditLog | None = None,
    issuer: Issuer | None = None,
    new_incident: Callable[[], str] = lambda: secrets.token_hex(6),
) -> FastAPI:
    """The lab's HTTP application.

    `walls` says what code of a user does not see of the machine. `challenges`: where they are remembered, where their directories
    lie, and the files of sessions.
    `run_of` gives run id and experiment id of a job, `run_metrics` what the tracking server has of the run of an owner's;
    `tracking_proxy` is mounted at ``/mlflow`` behind the gate, which puts
    a `Grant` into ``scope["state"]["grant"]``. ``app.state.close_streams()`` ends all event streams (any thread); a server
    calls it when it begins to stop, because it would wait for them. Run it without an access log: addresses of sign-in
    links hold their ticket.
    """
    doorbell = Doorbell(lab)
    conversations = Conversations(lab.still, clock=lab.tokens.clock)
    lab.tokens.subscribe(conversations.look)
    submissions = Submissions(lab, snapshots, remembered=settings.described_tasks)
    workers = PoolWorkers(lab=lab, submissions=submissions, sessions=sessions)
    pools = Pools(
        store=calls,
        jobs=lab.jobs_store,
        workers=workers,
        clock=lab.clock,
        discard=CallBodies.discard,
        share=CallBodies.share,
        check_room=lambda caller: lab.retention.check_room(caller),
        most=settings.waiting_calls,
    )
    trials = TrialJobs(lab=lab, submissions=submissions)
    swept = Sweeps(store=sweeps[0], study=sweeps[1], jobs=lab.jobs_store, trial_jobs=trials, clock=lab.clock)
    comparing = Comparing(lab=lab, snapshots=snapshots, metrics=run_metrics)
    memory, directories, own_files = challenges
    directories.mkdir(mode=0o700, exist_ok=True)
    programs, sent = ChallengePrograms(directories, lab, snapshots, submissions), SentSubmissions(memory.of(SUBMISSIONS))
    runs = ChallengeRuns(lab, programs, memory.of(CHALLENGES), sent)
    rescoring = Rescoring(programs=programs, runs=runs, challenges=memory.of(CHALLENGES), submissions=sent)
    runs.scored = rescoring.catch_up
    organised = Challenges(
        lab=lab,
        programs=programs,
        runs=runs,
        rescoring=rescoring,
        challenges=memory.of(CHALLENGES),
        teams=memory.of(TEAMS),
        submissions=sent,
        notices=memory.of(CHALLENGE_NOTICES),
    )
    body_files = BodyFiles(settings.calls, settings.body_socket)
    gateway = Gateway(
        lab=lab,
        settings=settings,
        streams=Streams(lab=lab, doorbell=doorbell, heartbeat=settings.heartbeat),
        submissions=submissions,
        incoming=Incoming(lab, snapshots, walls, settings.templates, GitHosts(settings.git_hosts)),
        pools=pools,
        sweeps=swept,
        drifts=Drifts(baselines=Baselines(store=baseline_store, lab=lab), comparing=comparing),
        challenges=organised,
        participating=Participating(challenges=organised, samples=memory.of(CHALLENGE_SAMPLES), files=own_files),
        publishing=Publishing(challenges=organised, walls=walls),
        organising=Organising(challenges=organised, notices=organised.notices, snapshots=snapshots),
        samples=ChallengeSamples(challenges=organised, samples=memory.of(CHALLENGE_SAMPLES)),
        bodies=CallBodies(settings.calls),
        comparing=comparing,
        explaining=Explaining(comparing=comparing, snapshots=snapshots),
        matrices=Matrices(comparing=comparing, snapshots=snapshots),
        rule_previews=RulePreviews(lab),
        files=body_files,
        ssh=SshAccess(lab),
        run_of=run_of,
        tracking_status=tracking_status,
        sessions=sessions,
        environments=Environments(environments, may_build=lab.policy.here),
        audit=audit,
        issuer=issuer,
        pages=pages,
    )
    zones = _zones(settings, pages)
    answers = _Answers(zones, pages)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with doorbell.running():
            loops = [
                PoolLoop(pools, lab.event_store),
                PoolLoop(swept, lab.event_store, name="sweeps"),
                PoolLoop(organised.runs, lab.event_store, name="challenges"),
                PoolLoop(ChallengeFinals(organised), lab.event_store, name="finals"),
            ]
            await to_thread.run_sync(body_files.start)
            for loop in loops:
                await to_thread.run_sync(loop.start)
            try:
                yield
            finally:
                await to_thread.run_sync(body_files.close)
                for loop in loops:
                    await to_thread.run_sync(loop.close)

    app = FastAPI(
        title="Carrel",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=[
            *_auditing(audit, zones, settings, answers),
            Middleware(
                Boundary,
                zones=zones,
                limit=_limits(settings),
                new_incident=new_incident,
                answer=answers.problem,
                whole=settings.max_body,
                notices=lambda: storage_header(lab.storage),
            ),
            Middleware(Hosts, names=settings.names, refuse=answers.error),
            Middleware(
                Gate,
                zones=zones,
                authenticate=lab.authenticate,
                recognize=lab.recognize,
                conversations=conversations,
                sessions=pages,
                refuse=answers.error,
                actors=Rates(rate=settings.rate_limit, burst=settings.rate_burst, monotonic=time.monotonic),
                strangers=Rates(rate=settings.stranger_rate, burst=settings.stranger_burst, monotonic=time.monotonic),
            ),
        ],
    )
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    app.state.gateway = gateway
    app.state.close_streams = gateway.close
    app.state.conversations = conversations
    answers.install(app)
    app.add_api_route("/health", _health, methods=["GET"], summary="Is the lab there, and has it room?", tags=["lab"])
    if settings.authority:
        # No secret, and asked for before anybody can sign in: who gets it compares its fingerprint.
        pem = Response(settings.authority, media_type="application/pem-certificate-chain")
        app.add_route("/authority.pem", lambda _request: pem, methods=["GET"], include_in_schema=False)
    for module in (
        *(worker_routes, pool_routes),  # looked through in this order: these have many requests that wait for each other
        *(lab_routes, report_routes, audit_routes, people, jobs, arrays, comparison, baselines, files, events),
        *(
            body_routes,
            interrupts,
            sweep_routes,
            challenge_routes,
            session_routes,
            cells,
            environment_routes,
            retention_routes,
            secret_routes,
            ssh_routes,
        ),
    ):
        # As they are: a router that is included is looked through anew for each request.
        app.router.routes.extend(module.router.routes)
    app.router.routes.extend(NOUN_ROUTES)
    app.router.routes.append(ssh_routes.STREAM)
    if issuer is not None:
        app.router.routes.extend(issuer_routes.router.routes)
    if tracking_proxy is not None:
        app.add_api_route(settings.tracking_path, _to_directory, include_in_schema=False)
        app.mount(settings.tracking_path, tracking_proxy)
    if pages is not None:
        pages.install(app, gateway)
    return app


def _zones(settings: GatewaySettings, pages: Pages | None) -> Zones:
    return Zones(
        public=settings.public | issuer_routes.PUBLIC | (pages.public if pages else frozenset()),
        public_under=pages.public_under if pages else (),
        changing=pages.changing if pages else frozenset(),
        tracking=settings.tracking_path,
    )


def _auditing(audit: AuditLog | None, zones: Zones, settings: GatewaySettings, answers: _Answers) -> list[Middleware]:
    if audit is None:
        return []
    return [Middleware(Auditing, log=audit, zones=zones, reads=settings.audit_reads, refuse=answers.error, clock=time.monotonic)]


async def _health(request: Request) -> HealthView:
    """Answers without sign-in; of the lab it tells only which of its disks have no room, with numbers."""
    gateway: Gateway = request.app.state.gateway
    short = gateway.lab.storage.short()
    if short is None:
        return HealthView(status="ok")
    found = [disk_view(one) for one in gateway.lab.storage.disks() if one.room is not Room.OK]
    return HealthView(status="full" if short.room is Room.FULL else "low", storage=found)


async def _to_directory(request: Request) -> Response:
    return RedirectResponse(request.url.path + "/", 308)


def _limits(settings: GatewaySettings) -> Callable[[Scope], int | None]:
    def limit(scope: Scope) -> int | None:
        path: str = scope["path"]
        if path.startswith(settings.tracking_path + "/"):
            return None  # artifacts have the limits of the tracking server
        if (most := pool_routes.largest_body(path)) is not None:
            return most
        return settings.max_snapshot if path.startswith((f"{API}/snapshots/", NEW_TASK)) else settings.max_body

    return limit


class _Answers:
    """Errors as they go out: JSON for programs, a page for people where there are pages."""

    def __init__(self, zones: Zones, pages: Pages | None) -> None:
        self._zones = zones
        self._pages = pages

    def install(self, app: FastAPI) -> None:
        """Answer every error that a route raises."""
        app.add_exception_handler(CarrelError, self.error)  # type: ignore[arg-type]
        app.add_exception_handler(RequestValidationError, self.invalid)  # type: ignore[arg-type]
        app.add_exception_handler(HTTPException, self.framework)  # type: ignore[arg-type]

    async def problem(self, request: Request, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
        """`problem` in the form that the client reads."""
        readable = "text/html" in request.headers.get("accept", "")
        if self._pages is not None and readable and self._zones.of(request.url.path) is not Zone.API:
            page = self._pages.problem_page(request, problem)
            page.headers.update(headers or {})  # Retry-After is for browsers, too
            return page
        return problem_response(problem, headers)

    async def error(self, request: Request, error: CarrelError) -> Response:
        """The answer to an error of the lab's."""
        return await self.problem(request, *problem_of(error))

    async def invalid(self, request: Request, error: RequestValidationError) -> Response:
        """The answer to a request that does not fit its model."""
        return await self.error(request, invalid_request(error, _body_model(request)))

    async def framework(self, request: Request, error: HTTPException) -> Response:
        """The answer to what the router refused."""
        return await self.problem(request, *problem_of_framework(error))


def _body_model(request: Request) -> type[BaseModel] | None:
    field = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(field, "field_info", None), "annotation", None)
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


_SCHEME = "access token"
_PROBLEMS = {
    "400": "The request cannot be read: no well-formed HTTP, or no JSON.",
    "401": "Nobody is signed in.",
    "403": "The caller may not do this.",
    "404": "It does not exist, or is not the caller's to see.",
    "409": "Not possible in the present state.",
    "413": "The request is too large.",
    "421": "The request is for a name that is not the lab's (`public_url`).",
    "422": "The request is not right, or this lab can never do it.",
    "429": "Too many requests; `Retry-After` says when to try again.",
    "503": "Not possible right now; `Retry-After` says when to try again.",
    "507": "A disk is full; nothing was changed.",
}
_ABOUT = (
    "A lab that shares its GPUs. Times are ISO 8601 in UTC, sizes are bytes, durations are seconds. Every error is an "
    "`application/problem+json` (RFC 9457) with the fact, its value and the remedy."
)


def document(app: FastAPI) -> dict[str, Any]:
    """The document of `app`, made once."""
    if app.openapi_schema is None:
        made = get_openapi(title="Carrel", version=__version__, description=_ABOUT, routes=app.routes)
        schemas = made["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        made["components"]["securitySchemes"] = {_SCHEME: {"type": "http", "scheme": "bearer"}}
        for path, operations in made["paths"].items():
            for operation in operations.values():
                _complete(path, operation)
        app.openapi_schema = made
    return app.openapi_schema


def _complete(path: str, operation: dict[str, Any]) -> None:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    operation["responses"].pop("422", None)
    if not path.startswith("/api/"):
        return
    operation["security"] = [{_SCHEME: []}]
    for status, description in _PROBLEMS.items():
        operation["responses"].setdefault(status, {"description": description, "content": content})
