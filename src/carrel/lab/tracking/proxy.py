"""The only way to MLflow: every request is somebody's, and stays inside their workspace.

An ASGI application, mounted by the gateway at ``/mlflow``. MLflow's own clients and pages work through it unchanged, with
``MLFLOW_TRACKING_URI=http://<lab>/mlflow`` and a token of the lab as ``MLFLOW_TRACKING_TOKEN``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import httpx
from anyio import to_thread
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from carrel.core.domain.errors import CarrelError, Denied, Invalid, NotFound, Unauthenticated, Unavailable
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed
from carrel.lab.tracking.params import metrics_in, renamed_params, run_of_params
from carrel.lab.tracking.rest import MlflowRest, Refused
from carrel.lab.tracking.server import ServerState, ServerStatus
from carrel.lab.tracking.tenancy import (
    WORKSPACE_HEADER,
    Kind,
    kind_of,
    server_info,
    understand_body,
    understand_query,
    workspace_of,
)

_log = logging.getLogger(__name__)

#: Connections to MLflow at once.
_CONNECTIONS = 100
#: Bytes of a JSON request; MLflow itself takes at most 1 MB in a batch. Artifacts have no limit.
_API_LIMIT = 32 * 1024**2
_FORWARDED = frozenset(
    {"accept", "accept-encoding", "content-type", "range", "if-range", "if-none-match", "if-modified-since", "user-agent"}
)
#: Between one hop and the next only (RFC 9110, 7.6.1), or not MLflow's to say to a browser of the lab.
_WITHHELD = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "upgrade", "trailer", "te", "server", "date", "set-cookie"}
    | {"access-control-allow-origin", "access-control-allow-credentials", "vary"}
)
_ANSWERS: tuple[tuple[type[CarrelError], int, str, str], ...] = (
    (Invalid, 400, "INVALID_PARAMETER_VALUE", "The request is not right"),
    (Unauthenticated, 401, "UNAUTHENTICATED", "Not signed in"),
    (Denied, 403, "PERMISSION_DENIED", "Not allowed"),
    (NotFound, 404, "ENDPOINT_NOT_FOUND", "Not found"),
    (Unavailable, 503, "TEMPORARILY_UNAVAILABLE", "Not possible right now"),
    (CarrelError, 500, "INTERNAL_ERROR", "The lab failed"),
)


class Upstream(Protocol):
    """What the proxy needs to know of the server; `TrackingServer` is one."""

    socket: Path

    @property
    def status(self) -> ServerStatus:
        """What the server does now."""

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from any thread, after each change; the result ends it."""


Identify = Callable[[Scope], Awaitable[Caller]]
#: Hears what a job logs: the caller, the run, and (name, step, value) of each metric. May block.
Hear = Callable[[Caller, str, Sequence[tuple[str, int, float]]], None]


def by_grant(scope: Scope) -> Awaitable[Caller]:
    """The caller that the gateway's gate has found already (``request.state.grant``)."""

    async def found() -> Caller:
        grant = scope.get("state", {}).get("grant")
        if grant is None:
            raise Unauthenticated("Nobody is signed in.", remedy="Use a token of this lab as MLFLOW_TRACKING_TOKEN.")
        caller: Caller = grant.caller
        return caller

    return found()


def by_token(authenticate: Callable[[str], Caller]) -> Identify:
    """Callers by the token in the Authorization header; `authenticate` may block and raises `Unauthenticated`."""

    async def identify(scope: Scope) -> Caller:
        token = token_in(Headers(scope=scope).get("authorization", ""))
        if token is None:
            raise Unauthenticated("The request carries no token.", remedy="Set MLFLOW_TRACKING_TOKEN to a token of this lab.")
        return await to_thread.run_sync(authenticate, token)

    return identify


def token_in(authorization: str) -> str | None:
    """The token in an Authorization header: Bearer (RFC 6750), or Basic with the token as the password (RFC 7617)."""
    scheme, _, value = authorization.strip().partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value or None
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
    return None


@dataclass(frozen=True, slots=True)
class _Tenant:
    workspace: str
    default_experiment: str


class TrackingProxy:
    """The ASGI application. While MLflow starts, requests are held for up to `patience` seconds, then answered with 503."""

    def __init__(self, upstream: Upstream, *, identify: Identify = by_grant, patience: float = 60.0) -> None:
        """`identify` says whose request a scope is, or raises `Unauthenticated`."""
        self._upstream = upstream
        self._identify = identify
        self._patience = patience
        self._rest = MlflowRest(upstream.socket)
        self._http: httpx.AsyncClient | None = None
        self._tenants: dict[str, _Tenant] = {}
        #: Of each user: more requests than a part of the connections wait for those before them.
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_CONNECTIONS // 4))
        #: Hears metrics of jobs before MLflow does, so that none is lost between the two; None: nobody wants to.
        self.hear: Hear | None = None

    async def aclose(self) -> None:
        """Close all connections to MLflow."""
        self._rest.close()
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            return
        try:
            caller = await self._identify(scope)
            async with self._turns[caller.user.subject]:
                await self._answer(caller, scope, receive, send)
        except CarrelError as error:
            await _refusal(error)(scope, receive, send)

    async def _answer(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        path, raw_path = _paths(scope)
        if path == "":
            await RedirectResponse(scope.get("root_path", "") + "/", 308)(scope, receive, send)
            return
        kind = kind_of(scope["method"], path)
        if kind is Kind.REFUSED:
            raise NotFound(
                f"This lab does not offer MLflow's {scope['method']} {path}.",
                remedy="Experiments, runs, metrics, artifacts and models are offered; see the lab's documentation of tracking.",
            )
        deadline = asyncio.get_running_loop().time() + self._patience
        await self._ready(deadline)
        headers = Headers(scope=scope)
        workspace = _workspace(caller, headers)
        if kind is Kind.CONTENT:
            await self._stream(_Tenant(workspace, ""), kind, scope, raw_path, _body(receive), send)
            return
        body = b""
        tenant = _Tenant(workspace, "")
        if kind is Kind.API:
            tenant = await self._tenant(workspace)
            understood = understand_body(await _read(receive), tenant.default_experiment)
            await self._check_models(tenant, understood.models)
            body = await self._of_attempt(caller, workspace, path, understood.body)
            await self._tell(caller, path, body)
        while True:
            try:
                await self._stream(tenant, kind, scope, raw_path, body, send)
                return
            except _NotReached as error:  # nothing was sent: it is safe to ask again when MLflow is back
                if asyncio.get_running_loop().time() + 0.5 > deadline:
                    raise _unavailable(str(error)) from None
                await asyncio.sleep(0.5)
                await self._ready(deadline)

    async def _tell(self, caller: Caller, path: str, body: bytes) -> None:
        if self.hear is not None and caller.job_id is not None and (told := metrics_in(path, body)) is not None:
            await to_thread.run_sync(self.hear, caller, *told)

    async def _of_attempt(self, caller: Caller, workspace: str, path: str, body: bytes) -> bytes:
        """The request as it is, or of a job's later attempt: what an attempt that is over has logged does not bind it."""
        if (caller.attempt or 1) < 2 or (run_id := run_of_params(path, body)) is None:
            return body
        try:
            data = await to_thread.run_sync(self._rest.run_data, workspace, run_id)
        except Refused:  # MLflow will say so again
            return body
        known = {row["key"]: row["value"] for row in data.get("params") or ()}
        return renamed_params(path, body, caller.attempt or 1, known)

    async def _ready(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(changed.set)

        end = self._upstream.on_change(wake)
        try:
            while (status := self._upstream.status).state is not ServerState.READY:
                left = deadline - loop.time()
                if status.state is not ServerState.STARTING or left <= 0:
                    raise _unavailable(status.reason)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), left)
                changed.clear()
        finally:
            end()

    async def _tenant(self, workspace: str) -> _Tenant:
        known = self._tenants.get(workspace)
        if known is None:
            experiment = await to_thread.run_sync(self._rest.experiment, workspace)
            known = self._tenants[workspace] = _Tenant(workspace, experiment)
        return known

    async def _check_models(self, tenant: _Tenant, models: frozenset[str]) -> None:
        for model in models:
            if not await to_thread.run_sync(partial(self._rest.has_model, tenant.workspace, model)):
                raise Invalid(f"There is no logged model {model} of yours.", remedy="Log metrics to a model of your own.")

    async def _stream(
        self, tenant: _Tenant, kind: Kind, scope: Scope, raw_path: str, body: bytes | AsyncIterator[bytes], send: Send
    ) -> None:
        request = self._request(tenant, kind, scope, raw_path, body)
        if self._http is None:
            self._http = _client(self._upstream.socket)
        try:
            response = await self._http.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if isinstance(body, bytes):
                raise _NotReached(str(error)) from None
            raise _unavailable(str(error)) from None
        except httpx.HTTPError as error:
            raise _unavailable(f"MLflow broke off: {error or type(error).__name__}") from None
        try:
            if kind is Kind.SERVER_INFO and response.is_success:
                await Response(server_info(await response.aread()), media_type="application/json")(scope, _nothing, send)
                return
            await _pass_on(response, kind, send)
        finally:
            await response.aclose()

    def _request(
        self, tenant: _Tenant, kind: Kind, scope: Scope, raw_path: str, body: bytes | AsyncIterator[bytes]
    ) -> httpx.Request:
        incoming = Headers(scope=scope)
        headers = {name: value for name, value in incoming.items() if name in _FORWARDED}
        headers[WORKSPACE_HEADER] = tenant.workspace
        query: bytes = scope.get("query_string", b"")
        if kind is Kind.API:
            query = understand_query(query, tenant.default_experiment)
            if body:
                headers["content-type"] = "application/json"
        elif kind is Kind.CONTENT and "content-length" in incoming:
            headers["content-length"] = incoming["content-length"]
        url = httpx.URL("http://localhost").copy_with(raw_path=raw_path.encode("ascii") + (b"?" + query if query else b""))
        has_body = scope["method"] in ("POST", "PUT", "PATCH", "DELETE")
        return httpx.Request(scope["method"], url, headers=headers, content=body if has_body else None)


class _NotReached(Exception):
    """No connection was made."""


def _client(socket: Path) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=20, keepalive_expiry=30)
    timeout = httpx.Timeout(connect=5, read=600, write=600, pool=60)
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(socket), limits=limits), timeout=timeout)


def _workspace(caller: Caller, headers: Headers) -> str:
    """The caller's own; an administrator in person may name another user by their subject."""
    asked = headers.get(WORKSPACE_HEADER, "").strip()
    mine = caller.user.subject
    return workspace_of(asked if asked and allowed(caller, Action.TRACK, Resource(owner=asked)) else mine)


def _paths(scope: Scope) -> tuple[str, str]:
    """The path below the mount point: decoded once, and as it came."""
    root: str = scope.get("root_path", "")
    path: str = scope["path"].removeprefix(root)
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        return path, quote(path, safe="/:@!$&'()*+,;=~-._")
    text = raw.decode("latin-1").partition("?")[0]
    for prefix in (root, quote(root)):
        if prefix and text.startswith(prefix):
            return path, text[len(prefix) :]
    return path, text


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Unavailable("The client went away in the middle of an upload.")
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


async def _read(receive: Receive) -> bytes:
    parts, size = [], 0
    async for part in _body(receive):
        size += len(part)
        if size > _API_LIMIT:
            raise Invalid(f"The request is larger than {_API_LIMIT} bytes.", remedy="Send fewer values at a time.")
        parts.append(part)
    return b"".join(parts)


async def _nothing() -> dict[str, str]:
    return {"type": "http.disconnect"}


async def _pass_on(response: httpx.Response, kind: Kind, send: Send) -> None:
    headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower().decode() not in _WITHHELD]
    if kind is Kind.CONTENT:
        # Somebody's file, in the lab's own origin: a browser must not run what is in it.
        headers.append((b"content-security-policy", b"sandbox; default-src 'none'"))
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    try:
        async for chunk in response.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except httpx.HTTPError:
        # The status is out already. Not finishing the body is how HTTP says that it is incomplete.
        _log.warning("MLflow broke off in the middle of an answer.")
        raise
    await send({"type": "http.response.body", "body": b""})


def _unavailable(reason: str) -> Unavailable:
    return Unavailable(
        f"MLflow is not available: {reason or 'it does not answer'}.".replace("..", "."), remedy="Try again in a minute."
    )


def _refusal(error: CarrelError) -> Response:
    """RFC 9457, with the two fields beside it that MLflow's own clients show to their users."""
    status, mlflow_code, title = next(row[1:] for row in _ANSWERS if isinstance(error, row[0]))
    body = {
        "type": f"urn:carrel:problem:{error.code}",
        "title": title,
        "status": status,
        "detail": error.message,
        "remedy": error.remedy,
        "error_code": mlflow_code,
        "message": str(error),
    }
    headers = {}
    if status == 503:
        headers["Retry-After"] = "5"
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="carrel"'
    return Response(json.dumps(body), status, headers, "application/problem+json")
