"""The one authorization gate: every path that is not public needs a signed-in user, before any other code sees the request.

It stands in front of the router, so a route that is added tomorrow is closed until somebody opens it here. What a
signed-in user may do is decided by the lab itself; here is only decided that there is one, and what their token is good for.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from carrel.core.control.conversations import Conversations, PutOut
from carrel.core.domain.errors import CarrelError, Denied, Unauthenticated
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, token_allows
from carrel.lab.gateway.actions import action_of
from carrel.lab.gateway.rates import Rates

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
#: Longest token that is looked at.
_TOKEN = 512


class Zone(Enum):
    """Parts of the address space, by how one signs in to them."""

    PUBLIC = "public"
    #: Bearer token.
    API = "api"
    #: Bearer token or session cookie: programs and browsers both go there.
    TRACKING = "tracking"
    #: Session cookie.
    PAGES = "pages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Somebody is signed in."""

    caller: Caller
    #: Asks again whether they still are; raises `Unauthenticated` after the token was revoked or the session ended.
    recheck: Callable[[], Caller]


class SignedIn(Protocol):
    """How the pages recognise a browser."""

    def session_token(self, cookie: str) -> str | None:
        """The access token behind the session in a Cookie header, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zones:
    """Which path belongs to which zone. Everything that is not named is a page."""

    public: frozenset[str]
    #: Public directories, each with its final slash.
    public_under: tuple[str, ...] = ()
    #: Public paths at which a GET request may change something.
    changing: frozenset[str] = frozenset()
    tracking: str = "/mlflow"

    def of(self, path: str) -> Zone:
        """The zone of `path`, as the router sees it."""
        if path in self.public or path.startswith(self.public_under or ("\0",)):
            return Zone.PUBLIC
        if path == "/api" or path.startswith("/api/"):
            return Zone.API
        if path == self.tracking or path.startswith(self.tracking + "/"):
            return Zone.TRACKING
        return Zone.PAGES


class Gate:
    """ASGI middleware. Puts a `Grant` into ``request.state.grant`` or answers 401 (403 where a job's token is not enough)."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        zones: Zones,
        authenticate: Callable[[str], Caller],
        recognize: Callable[[str], Caller | None],
        conversations: Conversations,
        sessions: SignedIn | None,
        refuse: Callable[[Request, CarrelError], Awaitable[Response]],
        actors: Rates,
        strangers: Rates,
    ) -> None:
        """`recognize` is `authenticate` where that takes no waiting, else None.

        `actors` counts the requests of those who are signed in, `strangers` those that come without a good token.
        """
        self._app = app
        self._recognize = recognize
        self._zones = zones
        self._authenticate = authenticate
        self._conversations = conversations
        self._sessions = sessions
        self._refuse = refuse
        self._actors = actors
        self._strangers = strangers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through or answer."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        zone, version = self._zones.of(scope["path"]), self._conversations.version
        if scope["type"] == "websocket" and zone is not Zone.API:  # only programs have any here
            await send({"type": "websocket.close", "code": 1008})
            return
        grant: Grant | None = None
        if zone is not Zone.PUBLIC or method_of(scope) not in _SAFE:
            try:
                if zone is Zone.PUBLIC:  # somebody tries to sign in
                    self._strangers.take(_address(scope))
                else:
                    grant = scope.setdefault("state", {})["grant"] = await self._grant(zone, scope)
            except CarrelError as error:
                response = await self._refuse(Request({**scope, "type": "http"}), error)
                if scope["type"] == "websocket":
                    await WebSocket(scope, receive, send).send_denial_response(response)
                else:
                    await response(scope, receive, send)
                return
        if grant is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._conversations.hold(grant.caller, version, partial(self._app, scope, receive), send)
        except PutOut as out:
            if not out.begun and scope["type"] == "http":  # else the server breaks the answer off
                response = await self._refuse(Request(scope), out.why)
                await response(scope, receive, send)

    async def _grant(self, zone: Zone, scope: Scope) -> Grant:
        headers = Headers(scope=scope)
        try:
            shown, recheck = self._credentials(zone, method_of(scope), headers)
            caller = self._recognize(shown)
            if caller is None:
                caller = await to_thread.run_sync(recheck)
        except Unauthenticated:
            self._strangers.take(_address(scope))
            raise
        scope.setdefault("state", {})["caller"] = caller
        self._actors.take(f"{caller.user.subject}\0{caller.job_id or ''}")
        if (connection := scope["state"].get("connection")) is not None:
            connection.known(caller.user.subject, caller.job_id)
        token_allows(caller, _action(zone, scope)).check()
        return Grant(caller=caller, recheck=recheck)

    def _credentials(self, zone: Zone, method: str, headers: Headers) -> tuple[str, Callable[[], Caller]]:
        """The token, and what asks again whose it is."""
        if zone is not Zone.PAGES:
            token = token_in(headers.get("authorization", ""), basic=zone is Zone.TRACKING)
            if token is not None:
                if not token.isascii() or len(token) > _TOKEN:
                    raise Unauthenticated("The token is not valid here.", remedy="Send it as it is in the token file.")
                return token, partial(self._authenticate, token)
        if zone is not Zone.API and self._sessions is not None:
            cookie = headers.get("cookie", "")
            token = self._sessions.session_token(cookie)
            if token is not None:
                if method not in _SAFE and not same_origin(headers):
                    raise Denied("This request comes from another site.", remedy="Use the lab's own pages.")
                return token, partial(self._by_session, cookie)
        if zone is Zone.PAGES:
            raise _not_signed_in()
        raise Unauthenticated(
            "The request carries no access token.",
            remedy='Send "Authorization: Bearer <token>"; `carrel up` tells where the token is.',
        )

    def _by_session(self, cookie: str) -> Caller:
        token = self._sessions.session_token(cookie) if self._sessions else None
        try:
            return self._authenticate(token or "")
        except Unauthenticated as error:
            raise error if error.details else _not_signed_in() from None


def _not_signed_in() -> Unauthenticated:
    return Unauthenticated(
        "This browser is not signed in.", remedy="Open the one-time link that `carrel up` or `carrel open` prints."
    )


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _action(zone: Zone, scope: Scope) -> Action | None:
    if zone is Zone.API:
        return action_of(method_of(scope), scope["path"])
    return Action.TRACK if zone is Zone.TRACKING else Action.BROWSE


def method_of(scope: Scope) -> str:
    """The method of a request. A websocket begins as a GET (RFC 6455, 4.1)."""
    method: str = scope.get("method", "GET")
    return method


def token_in(authorization: str, *, basic: bool) -> str | None:
    """The token of an Authorization header: Bearer (RFC 6750); with `basic` also as a password (RFC 7617), as MLflow sends it."""
    scheme, _, value = authorization.strip().partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value or None
    if basic and scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
    return None


def same_origin(headers: Mapping[str, str]) -> bool:
    """True unless the browser says that another site caused the request (Fetch Metadata, else Origin against Host)."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] == headers.get("host")
