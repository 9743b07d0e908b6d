"""Signing in and out."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from contextlib import suppress
from html import escape
from typing import Any
from urllib.parse import parse_qs

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.errors import CarrelError, Denied, Invalid, Unauthenticated
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, token_allows
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.gate import same_origin
from carrel.lab.portal.sign_in_methods import local_path
from carrel.lab.portal.signin import Sessions, Tickets
from carrel.lab.portal.templating import Templates

#: Longest form; the pages' own forms are a few hundred bytes.
_FORM = 16 * 1024
#: A page of our own takes the last step: a cookie that is SameSite=Strict does not go along with a redirect that another
#: site began (a link in a web mail, in a terminal in the browser). Refresh replaces the address, ticket and all.
_STEP = '<!doctype html><html lang="en"><title>Signing in</title><p><a href="{}">Go on</a></p></html>'


class Entrance:
    """``/login`` and ``/logout``."""

    def __init__(self, gateway: Gateway, tickets: Tickets, sessions: Sessions) -> None:
        self._gateway = gateway
        self._tickets = tickets
        self._sessions = sessions

    def routes(self) -> list[BaseRoute]:
        """The routes of the entrance."""
        return [
            Route("/login", self.by_ticket, methods=["GET"]),
            Route("/login", self.by_token, methods=["POST"]),
            Route("/logout", self.leave, methods=["POST"]),
        ]

    def by_ticket(self, request: Request) -> Response:
        """A one-time link."""
        if request.method == "HEAD":  # a HEAD request for a link does not use it up
            return Response()
        if "ticket" not in request.query_params:
            with suppress(CarrelError):
                self._gateway.lab.authenticate(
                    self._sessions.token(self._sessions.session_in(request.headers.get("cookie", "")) or "") or ""
                )
                return RedirectResponse("/", 303)
            raise Unauthenticated("Nobody is signed in.")
        shown = self._tickets.redeem(request.query_params["ticket"])
        if shown is None:
            raise Unauthenticated("This sign-in link was used already, or is older than ten minutes.")
        tell_audit(request.scope, action="sign in", line=True)
        caller = self._gateway.lab.tokens.by_number(shown)  # it may have been revoked since the link was made
        return self._by_shown(request, caller, "a link")

    async def by_token(self, request: Request) -> Response:
        """An access token, typed into the form."""
        if not same_origin(request.headers):
            raise Denied("This request comes from another site.", remedy="Use the lab's own pages.")
        fields = await read_form(request)
        request.state.after = local_path(fields.get("after"))
        token = fields.get("token", "").strip()
        if not token or not token.isascii() or len(token) > 512:
            raise Unauthenticated("That is not an access token.")

        def sign_in() -> Response:
            caller = self._gateway.lab.authenticate(token)
            return self._by_shown(request, caller, "a token", local_path(fields.get("after")))

        return await to_thread.run_sync(sign_in)

    def admit(
        self, request: Request, subject: str, *, how: str, after: str = "/", confirm: Callable[[], None] = lambda: None
    ) -> Response:
        """Sign in a browser whose person has proven who they are (`carrel.lab.portal.sign_in_methods`)."""
        tokens = self._gateway.lab.tokens
        session, token = self._sessions.new()
        made = tokens.sign_in(subject, token, how=how)
        try:
            confirm()
            return self._welcome(request, session, token, local_path(after))
        except CarrelError:
            tokens.end(made)  # of somebody who is suspended
            raise

    def _by_shown(self, request: Request, caller: Caller, what: str, after: str = "/") -> Response:
        """Sign in a browser that showed a token of the caller's."""
        if caller.token_id is None:
            raise Unauthenticated("That is the token of a job.", remedy="Use a token of your own.")
        token_allows(caller, Action.BROWSE).check()
        session, token = self._sessions.new()
        self._gateway.lab.tokens.sign_in(caller.user.subject, token, how=f"by {what}", shown=caller.token_id)
        return self._welcome(request, session, token, after)

    async def leave(self, request: Request) -> Response:
        """Sign out."""
        session = self._sessions.session_in(request.headers.get("cookie", "")) or ""
        check_form(await read_form(request), self._sessions.form_secret(session))
        await to_thread.run_sync(self._revoke, self._sessions.token(session) or "")
        response = RedirectResponse("/", 303)
        name = self._sessions.cookie(secure=_secure(request))
        response.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=_secure(request))
        return response

    def _revoke(self, token: str) -> None:
        with suppress(CarrelError):  # it is void already
            caller = self._gateway.lab.authenticate(token)
            if caller.token_id is not None:
                self._gateway.lab.tokens.revoke(caller, caller.token_id)

    def _welcome(self, request: Request, session: str, token: str, after: str) -> Response:
        request.state.caller = self._gateway.lab.authenticate(token)  # for the audit log
        response: Response = RedirectResponse(after, 303)
        if request.headers.get("sec-fetch-site") not in (None, "none", "same-origin"):
            response = HTMLResponse(_STEP.format(escape(after)), headers={"Refresh": f"0; url={after}"})
        response.set_cookie(
            self._sessions.cookie(secure=_secure(request)),
            session,
            max_age=int(self._sessions.lifetime),
            path="/",
            httponly=True,
            samesite="strict",
            secure=_secure(request),
        )
        response.headers["Cache-Control"] = "no-store"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


def _secure(request: Request) -> bool:
    return request.url.scheme == "https"


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form (application/x-www-form-urlencoded); of a repeated one the last. Raises `Invalid`."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _FORM:
            raise Invalid("The form is too long.", remedy="Use the lab's own pages.")
    try:
        fields: dict[str, list[Any]] = parse_qs(body.decode("utf-8"), strict_parsing=bool(body), max_num_fields=20)
    except ValueError as error:
        raise Invalid("The form cannot be read.", remedy="Use the lab's own pages.") from error
    return {name: values[-1] for name, values in fields.items()}


async def checked_form(request: Request, look: Templates) -> dict[str, str]:
    """The fields of a form that came from a page of this session. Raises `Invalid`, `Denied`."""
    fields = await read_form(request)
    check_form(fields, look.form_secret(request))
    return fields


def check_form(fields: dict[str, str], secret: str | None) -> None:
    """Raise `Denied` unless the form came from a page of this session."""
    if secret is None or not hmac.compare_digest(fields.get("form_secret", "").encode(), secret.encode()):
        raise Denied("This form is not from a page of your session.", remedy="Load the page again and repeat what you did.")
