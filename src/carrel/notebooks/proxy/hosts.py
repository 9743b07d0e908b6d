"""One application in front of two: the lab on its own name, each session on a host name of its own.

A session's page comes from an origin that nothing else has (RFC 6454): the portal and other sessions are other sites to it, by
host name and not only by port, because cookies do not know ports (RFC 6265, 8.5).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import parse_qs

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from carrel.core.control.conversations import Conversations, PutOut
from carrel.core.domain.errors import CarrelError, TooMany, Unavailable
from carrel.core.domain.ports import Clock
from carrel.core.domain.user import Caller
from carrel.core.transport.message_room import MessageRoom, Place
from carrel.notebooks import LARGEST_MESSAGE, identity
from carrel.notebooks.proxy import pages, websocket
from carrel.notebooks.proxy.headers import from_this_origin
from carrel.notebooks.proxy.http import Carried, HttpForwarder
from carrel.notebooks.proxy.sessions import Session, Sessions
from carrel.notebooks.proxy.tickets import ENTRANCE, OURS, TicketIssuer

#: Name of the cookie of a browser that was let in; over https with the prefix that keeps it to this host name (RFC 6265bis).
COOKIE = "carrel-session"
SECURE_COOKIE = f"__Host-{COOKIE}"
#: Seconds for which an answer about a session is used again.
_REMEMBERED = 1.0
#: Longest Cookie header that is looked at.
_LONGEST = 65_536


class SessionHosts:
    """ASGI application: requests for a session's host name go to the session, all others to `app`."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        sessions: Sessions,
        door: TicketIssuer,
        pattern: str,
        secret: bytes,
        clock: Clock,
        conversations: Conversations,
        room: MessageRoom | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pattern` is the host name of a session with ``{session}`` in the place of its label; a port in it is ignored.

        `room` counts what the websockets of sessions have sent.
        """
        self._app = app
        self._sessions = sessions
        self._door = door
        self._suffix = pattern.lower().removeprefix("{session}").partition(":")[0]
        self._secret = secret
        self._clock = clock
        self._conversations = conversations
        self._monotonic = monotonic
        self._forwarder = HttpForwarder()
        self._room = room or MessageRoom(2 * LARGEST_MESSAGE)
        self._known: dict[str, tuple[float, Session | None]] = {}
        self._used: dict[tuple[int, int], float] = {}
        #: Whose tokens let browsers in, by their numbers, each with the version of `conversations` for which that is true.
        self._guests: dict[int, tuple[object, Caller | None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or pass on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        # Of two hosts (RFC 9112, 3.2) a proxy in front of us may have read the other one: such a request is refused.
        label = self._label(hosts[0]) if len(hosts) == 1 else None
        if label is None and len(hosts) < 2:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer = pages.unreadable() if label is None else await self._http(label, scope, receive, send)
            if answer is not None:
                await answer(scope, receive, send)
        elif label is None or not await self._websocket(label, scope, receive, send):
            await receive()  # "websocket.connect"; to close it before it was accepted is to answer 403
            await send({"type": "websocket.close", "code": 1008})

    async def aclose(self) -> None:
        """Close the connections to all sessions."""
        await self._forwarder.aclose()

    def _label(self, host: bytes) -> str | None:
        """The label in a Host header, or None when the request is not for a session."""
        name = host.decode("latin-1").lower().partition(":")[0].removesuffix(".")
        if not name.endswith(self._suffix):
            return None
        label = name.removesuffix(self._suffix)
        return label if identity.read_session_label(label) is not None else None

    # ---- requests

    async def _http(self, label: str, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """The answer, or None when the session gave one."""
        headers = Headers(scope=scope)
        path: str = scope["path"]
        if path == ENTRANCE:
            return await self._enter(label, scope)
        # First of all: nobody makes the lab look into its store, or learns what is in it, who has no cookie.
        version = self._conversations.version
        guest = await self._guest(self._shown(label, headers))
        session = await self._find(label) if guest is not None else None
        if guest is None or session is None or session.owner != guest.user.subject:
            return pages.not_let_in()
        if not _has_room(scope, session):
            return pages.too_many()
        if session.over:
            await self._forwarder.forget(session)
            return pages.over(session.message)
        if not from_this_origin(headers, scope["method"]):
            return pages.other_site()
        if path == OURS or path.startswith(OURS + "/"):
            return pages.nothing_here()
        if not session.ready:
            return pages.starting(session.message)
        try:
            return await self._conversations.hold(guest, version, partial(self._forward, label, session, scope, receive), send)
        except PutOut as out:
            return None if out.begun else pages.not_let_in()

    async def _forward(self, label: str, session: Session, scope: Scope, receive: Receive, send: Send) -> Response | None:
        await self._use(session)
        carried = await self._forwarder.carry(session, scope, receive, send, self._identity(session))
        if carried is Carried.NOT_REACHED:
            self._known.pop(label, None)
            return pages.starting(session.message)
        if carried is Carried.BROKEN_OFF:
            return pages.broken_off()
        return pages.unreadable() if carried is Carried.UNREADABLE else None

    async def _enter(self, label: str, scope: Scope) -> Response:
        if scope["method"] == "HEAD":  # a HEAD request for a link does not use it up
            return Response(headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
        tickets = parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [])
        taken = self._door.take(label, tickets[0]) if len(tickets) == 1 and scope["method"] == "GET" else None
        session = await self._find(label) if taken is not None else None
        guest = await self._guest(taken[0]) if taken is not None else None
        if taken is None or guest is None or session is None or guest.user.subject != session.owner:
            return pages.bad_ticket()
        if session.over:
            return pages.over(session.message)
        secure = scope["scheme"] == "https"
        answer = RedirectResponse(taken[1], 303, headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
        answer.set_cookie(
            SECURE_COOKIE if secure else COOKIE,
            identity.cookie_value(self._secret, label, taken[0]),
            httponly=True,
            samesite="lax",
            secure=secure,
            path="/",
        )
        return answer

    # ---- websockets

    async def _websocket(self, label: str, scope: Scope, receive: Receive, send: Send) -> bool:
        """False when it was not carried; then nothing was sent."""
        headers = Headers(scope=scope)
        version = self._conversations.version
        guest = await self._guest(self._shown(label, headers))
        session = await self._find(label) if guest is not None else None
        if guest is None or session is None or session.owner != guest.user.subject or session.over or not session.ready:
            return False
        if not from_this_origin(headers, "GET", websocket=True) or not _has_room(scope, session):
            return False
        await to_thread.run_sync(self._sessions.connected, session.job_id, session.attempt, 1)
        try:
            place = Place(self._room, session.owner)
            talk = partial(websocket.carry, session, scope, receive, identity=self._identity(session), place=place)
            return await self._conversations.hold(guest, version, talk, send)
        except PutOut as out:
            if out.begun:
                with contextlib.suppress(RuntimeError):  # it was closed in this moment
                    await send({"type": "websocket.close", "code": 1008, "reason": "You are let in no more."})
            return out.begun
        finally:
            # Also when this request is cancelled: a connection that is counted for ever keeps a session from being idle.
            self._sessions.connected(session.job_id, session.attempt, -1)

    # ---- who

    async def _find(self, label: str) -> Session | None:
        now = self._monotonic()
        known = self._known.get(label)
        if known is not None and now < known[0]:
            return known[1]
        found = await to_thread.run_sync(self._sessions.find, label)
        if found is not None and not (found.ready or found.over):
            return found  # somebody looks at it and waits
        if len(self._known) > 1000:
            self._known.clear()
        self._known[label] = (now + _REMEMBERED, found)
        return found

    async def _use(self, session: Session) -> None:
        key, now = (session.job_id, session.attempt), self._monotonic()
        if now - self._used.get(key, -_REMEMBERED) < _REMEMBERED:
            return
        if len(self._used) > 1000:
            self._used.clear()
        self._used[key] = now
        await to_thread.run_sync(self._sessions.used, session.job_id, session.attempt)

    async def _guest(self, token_id: int | None) -> Caller | None:
        """Whose token this is, while it is valid."""
        if token_id is None:
            return None
        known = self._guests.get(token_id)
        if known is None or known[0] is not self._conversations.version or self._ended(known[1]):
            version = self._conversations.version
            try:
                guest = await to_thread.run_sync(self._sessions.guest, token_id)
            except Unavailable:  # asked again at the next request
                return None
            except CarrelError:
                guest = None
            if len(self._guests) > 1000:
                self._guests.clear()
            known = self._guests[token_id] = (version, guest)
        return known[1]

    def _ended(self, guest: Caller | None) -> bool:
        return guest is not None and guest.until is not None and guest.until <= self._clock()

    def _shown(self, label: str, headers: Headers) -> int | None:
        """The token with which this browser was let in, by its cookie."""
        for header in headers.getlist("cookie"):
            for part in header[:_LONGEST].split(";"):
                name, _, value = part.strip().partition("=")
                if name in (COOKIE, SECURE_COOKIE):
                    token_id = identity.read_cookie(self._secret, label, value)
                    if token_id is not None:
                        return token_id
        return None

    def _identity(self, session: Session) -> dict[str, str]:
        made = identity.headers(
            session.token,
            job_id=session.job_id,
            attempt=session.attempt,
            subject=session.owner,
            name=session.owner_name,
            now=self._clock(),
        )
        return dict(made)


def _has_room(scope: Scope, session: Session) -> bool:
    """Tell the server whose request it is; False where there are too many at once for the session."""
    connection = scope.get("state", {}).get("connection")
    try:
        if connection is not None:
            connection.known(session.owner, session.job_id)
    except TooMany:
        return False
    return True
