"""What holds for every request of every caller: size limits, security headers, and no failure without a number."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carrel.core.control.storage import StorageWatch
from carrel.core.transport.message_room import MessageRoom, Place
from carrel.lab.gateway.errors import problem_of, problem_of_incident, too_large
from carrel.lab.gateway.gate import Zone, Zones
from carrel.wire.v1 import STORAGE_HEADER, Problem

log = logging.getLogger("carrel.lab.gateway")

_COMMON = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
#: Requests of the largest size that one user may have in memory at once.
_LARGE_ONES = 16
#: What the lab's own pages may do (Content Security Policy).
PAGES_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: What is no page of the lab's (answers of the API, files to be saved) does nothing where a browser shows it nevertheless.
DATA_POLICY = "default-src 'none'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; sandbox"
#: The tracking pages are MLflow's own, and their scripts are theirs.
_TRACKING_POLICY = "object-src 'none'; base-uri 'self'; frame-ancestors 'self'"


def _raw(headers: Mapping[str, str]) -> Sequence[tuple[bytes, bytes]]:
    """Headers as ASGI has them."""
    return tuple((name.lower().encode(), value.encode("latin-1")) for name, value in headers.items())


_HEADERS: Mapping[Zone, Sequence[tuple[bytes, bytes]]] = {
    zone: _raw({**_COMMON, **own})
    for zone, own in {
        Zone.PUBLIC: {"X-Frame-Options": "DENY", "Content-Security-Policy": PAGES_POLICY},
        Zone.PAGES: {"X-Frame-Options": "DENY", "Content-Security-Policy": PAGES_POLICY, "Cache-Control": "no-store"},
        Zone.API: {"X-Frame-Options": "DENY", "Content-Security-Policy": DATA_POLICY, "Cache-Control": "no-store"},
        Zone.TRACKING: {"X-Frame-Options": "SAMEORIGIN", "Content-Security-Policy": _TRACKING_POLICY},
    }.items()
}


def storage_header(storage: StorageWatch) -> Mapping[str, str]:
    """The headers of every answer while a disk of the lab's has no room: how it is, and a sentence."""
    short = storage.short()
    return {} if short is None else {STORAGE_HEADER: f"{short.room.value}; {quote(short.message)}"}


class Boundary:
    """The outermost ASGI middleware."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        zones: Zones,
        limit: Callable[[Scope], int | None],
        new_incident: Callable[[], str],
        answer: Callable[[Request, Problem], Awaitable[Response]],
        whole: int,
        notices: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`notices` are headers that every answer of the API has at the moment.

        Requests whose limit is `whole` bytes are read as a whole; a user has so many of that size in memory at once.
        """
        self._whole = whole
        self._room = MessageRoom(_LARGE_ONES * whole)
        self._notices = notices
        self._app = app
        self._zones = zones
        self._limit = limit
        self._new_incident = new_incident
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, within the limits, and see that an answer comes back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        place: Place | None = None
        zone = self._zones.of(scope["path"])
        headers = _HEADERS[zone]
        if zone is Zone.API and (notices := self._notices()):
            headers = (*headers, *_raw(notices))

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                present = list(message.get("headers", ()))
                names = {name.lower() for name, _ in present}
                message["headers"] = present + [header for header in headers if header[0] not in names]
            await send(message)

        try:
            limit = self._limit(scope)
            if limit is not None:
                if _announced(scope) > limit:
                    response = await self._answer(Request(scope), problem_of(too_large(limit))[0])
                    await response(scope, receive, send_with_headers)
                    return
                receive = _counted(receive, limit)
                if limit == self._whole:
                    place = Place(self._room)
                    receive = _placed(receive, place, scope)
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:  # a worker that was killed while it sent a result, a laptop that was closed
            log.info("%s %s: the client has gone before all of the request was here", scope["method"], scope["path"])
        except Exception:
            incident = self._new_incident()
            # The path has no secrets; the query string may (a sign-in ticket), so it stays out.
            log.exception("incident %s in %s %s", incident, scope["method"], scope["path"])
            if not started:
                response = await self._answer(Request(scope), problem_of_incident(incident))
                await response(scope, receive, send_with_headers)
        finally:
            if place is not None:
                place.holds(0)


def _announced(scope: Scope) -> int:
    text = Headers(scope=scope).get("content-length", "0")
    return int(text) if text.isdigit() else 0


def _counted(receive: Receive, limit: int) -> Receive:
    """`receive` that fails with 413 once more than `limit` bytes of body have come (a chunked body announces no length)."""
    total = 0

    async def counted() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > limit:
            raise HTTPException(413, too_large(limit).message)  # what reads bodies knows this one
        return message

    return counted


def _placed(receive: Receive, place: Place, scope: Scope) -> Receive:
    """`receive` that fails with 429 when the caller has too many bytes of requests in memory."""

    async def placed() -> Message:
        message = await receive()
        size, caller = len(message.get("body", b"")), scope.get("state", {}).get("caller")
        if caller is not None and not place.came(size, caller.user.subject):
            raise HTTPException(429, headers={"Retry-After": "2"})
        return message

    return placed
