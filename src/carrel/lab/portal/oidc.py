"""Sign-in through an upstream provider: the button, the way there, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.errors import Denied, Unauthenticated
from carrel.lab.credentials.oidc import OidcSignIn
from carrel.lab.credentials.oidc.flow import LIFETIME
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.portal.local import address_of
from carrel.lab.portal.sign_in_methods import Admits, local_path

BEGIN, BACK = "/sign-in/oidc", "/sign-in/oidc/callback"
#: Cookie that binds a sign-in to its browser. Not the session's: it must come along when another site sends the browser here.
_COOKIE = "carrel_oidc"
_LONGEST_COOKIE = 4000
#: Sign-ins that may wait for the provider at once. The lab's other threads are for others, however slow it is.
_AT_ONCE = 8


class OidcPage:
    """Implements `carrel.lab.portal.sign_in_methods.SignInMethod`."""

    template = "sign_in_oidc.html"
    public = frozenset({BEGIN, BACK})
    changing = frozenset({BACK})

    def __init__(self, oidc: OidcSignIn) -> None:
        self._oidc = oidc
        self._limiter: CapacityLimiter | None = None
        self._secure = urlsplit(oidc.redirect_uri).scheme == "https"
        self.known: Mapping[str, Any] = {"provider": oidc.name}

    def routes(self, door: Admits) -> list[BaseRoute]:
        """Its routes."""

        async def back(request: Request) -> Response:
            return await self._back(request, door)

        return [Route(BEGIN, self.begin, methods=["GET"]), Route(BACK, back, methods=["GET"])]

    async def begin(self, request: Request) -> Response:
        """Send the browser to the provider."""
        if request.method == "HEAD":
            return Response()
        after = request.state.after = local_path(request.query_params.get("after"))
        home = urlsplit(self._oidc.redirect_uri)
        if request.headers.get("host") != home.netloc and "moved" not in request.query_params:
            # The browser must have the cookie where it comes back: by this name of the lab, and no other.
            query = urlencode({"after": after, "moved": "1"})
            return RedirectResponse(f"{home.scheme}://{home.netloc}{BEGIN}?{query}", 303)
        flow, place = await to_thread.run_sync(self._oidc.begin, after, limiter=self._threads())
        response = RedirectResponse(place, 303)
        response.set_cookie(
            _name(self._secure),
            flow.cookie,
            max_age=int(LIFETIME),
            path="/",
            httponly=True,
            samesite="lax",
            secure=self._secure,
        )
        return _quiet(response)

    async def _back(self, request: Request, door: Admits) -> Response:
        if request.method == "HEAD":  # a HEAD request uses nothing up
            return Response()
        tell_audit(request.scope, action="sign in")
        # Over https only the one that no other host name can have set.
        cookie = request.cookies.get(_name(self._secure), "")
        if len(cookie) > _LONGEST_COOKIE:
            raise Unauthenticated("This browser did not begin that sign-in. Press the button again.")
        flow, said = self._oidc.opened(request.query_params.multi_items(), cookie)
        after = request.state.after = flow.after

        def answer() -> Response:
            try:
                arrived = self._oidc.finish(
                    flow, said, address_of(request), lambda subject: setattr(request.state, "tried", subject)
                )
            except (Unauthenticated, Denied):
                tell_audit(request.scope, rule="sign-in provider")
                raise
            if arrived.changed:
                tell_audit(request.scope, changed=arrived.changed)
            how = f"through {self._oidc.name}"
            return door.admit(request, arrived.proof.subject, how=how, after=after, confirm=arrived.proof.confirm)

        response = await to_thread.run_sync(answer, limiter=self._threads())
        response.delete_cookie(_name(self._secure), path="/", httponly=True, samesite="lax", secure=self._secure)
        return _quiet(response)

    def _threads(self) -> CapacityLimiter:
        if self._limiter is None:
            self._limiter = CapacityLimiter(_AT_ONCE)
        return self._limiter


def _name(secure: bool) -> str:
    return f"__Host-{_COOKIE}" if secure else _COOKIE


def _quiet(response: Response) -> Response:
    """No cache keeps it, and no other site gets the address from which the browser comes: that has the code in it."""
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response
