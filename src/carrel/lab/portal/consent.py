"""Where a person lets a program sign in as them: ``/device`` (RFC 8628, 3.3) and ``/oauth/authorize`` (RFC 6749, 4.1.1)."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlsplit

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.errors import Invalid, NotFound
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.boundary import PAGES_POLICY
from carrel.lab.gateway.routes.issuer import address_of
from carrel.lab.portal.entrance import check_form, read_form
from carrel.lab.portal.requests import caller_of
from carrel.lab.portal.signin import Sessions, session_in
from carrel.lab.portal.templating import Templates
from carrel.lab.signin import Issuer, Refused
from carrel.lab.signin.clients import find_client
from carrel.lab.signin.code import CodeRequest, Returned, answer, read_request
from carrel.lab.signin.port import AuthorizationRequest, Device

#: What a program tells the page, and the page's form sends back.
_ASKED = (
    *("response_type", "client_id", "redirect_uri", "code_challenge", "code_challenge_method"),
    *("state", "scope", "device_name"),
)


class ConsentPages:
    """The two pages. A person who is not signed in comes back to them afterwards."""

    def __init__(self, issuer: Issuer, sessions: Sessions, look: Templates) -> None:
        self._issuer = issuer
        self._sessions = sessions
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The routes of these pages."""
        return [
            Route("/device", self.device, methods=["GET"]),
            Route("/device", self.decide_device, methods=["POST"]),
            Route("/oauth/authorize", self.authorize, methods=["GET"]),
            Route("/oauth/authorize", self.decide, methods=["POST"]),
        ]

    # ---- a code from a terminal

    def device(self, request: Request) -> Response:
        """Enter a code; with one in the address, the question at once."""
        text = request.query_params.get("user_code", "")
        if not text or request.method == "HEAD":
            return self._enter(request)
        return self._ask_about_device(request, text)

    async def decide_device(self, request: Request) -> Response:
        """A code was typed, or the question was answered."""
        fields = await self._form(request)
        text, said = fields.get("user_code", ""), fields.get("decision")
        if said is None:
            return await to_thread.run_sync(self._ask_about_device, request, text)
        approve = _approves(said)
        tell_audit(request.scope, action="approve a sign-in" if approve else "refuse a sign-in")
        act = partial(self._issuer.decide, caller_of(request), text, approve=approve, address=address_of(request))
        device = await to_thread.run_sync(act)
        tell_audit(request.scope, client=device.asked.client)
        return self._look.page(
            request,
            "consent_done.html",
            approved=approve,
            form_secret=self._form_secret(request),
            **self._words(device.asked),
        )

    def _ask_about_device(self, request: Request, text: str) -> Response:
        try:
            user_code, device = self._issuer.waiting(caller_of(request), text, address=address_of(request))
        except NotFound as error:
            tell_audit(request.scope, action="enter a code", rule="user code")
            return self._enter(request, typed=text[:20], problem=f"{error.message} {error.remedy}")
        return self._ask(request, device.asked, user_code=user_code, asked_at=self._moment(device), action="/device")

    def _enter(self, request: Request, *, typed: str = "", problem: str = "") -> Response:
        return self._look.page(
            request,
            "device.html",
            status=404 if problem else 200,
            typed=typed,
            problem=problem,
            form_secret=self._form_secret(request),
        )

    # ---- a program beside the browser

    def authorize(self, request: Request) -> Response:
        """The question, for a program on the machine of the browser."""
        try:
            wanted = _read(request.query_params)
            asked = self._issuer.asked(wanted, address=address_of(request))
        except Returned as returned:
            return RedirectResponse(returned.address, 303)
        hidden = {name: request.query_params[name] for name in _ASKED if name in request.query_params}
        page = self._ask(request, asked, hidden=hidden, action="/oauth/authorize")
        # The answer to the form leads there, and browsers apply the policy of the form's page to that.
        back = urlsplit(wanted.redirect_uri)
        page.headers["Content-Security-Policy"] = PAGES_POLICY.replace(
            "form-action 'self'", f"form-action 'self' {back.scheme}://{back.netloc}"
        )
        return page

    async def decide(self, request: Request) -> Response:
        """The question was answered: send the browser back to the program with a code, or with a refusal."""
        fields = await self._form(request)
        approve = _approves(fields.get("decision"))
        tell_audit(request.scope, action="approve a sign-in" if approve else "refuse a sign-in")
        try:
            wanted = _read(fields)
        except Returned as returned:
            return RedirectResponse(returned.address, 303)
        tell_audit(request.scope, client=wanted.client.id)
        about = {"state": wanted.state, "iss": str(request.base_url).rstrip("/")}  # RFC 9207
        if not approve:
            return RedirectResponse(answer(wanted.redirect_uri, error="access_denied", **about), 303)
        act = partial(self._issuer.authorize, caller_of(request), wanted, address=address_of(request))
        code = await to_thread.run_sync(act)
        response = RedirectResponse(answer(wanted.redirect_uri, code=code, **about), 303)
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    # ---- parts

    def _ask(self, request: Request, asked: AuthorizationRequest, **values: Any) -> Response:
        known: dict[str, Any] = {"user_code": "", "asked_at": None, "hidden": {}, "form_secret": self._form_secret(request)}
        return self._look.page(request, "consent.html", **{**known, **self._words(asked), **values})

    def _words(self, asked: AuthorizationRequest) -> dict[str, Any]:
        return {"command": find_client(asked.client).name, "asked": asked}

    def _moment(self, device: Device) -> Any:
        return self._look.moment(device.created_at)

    async def _form(self, request: Request) -> dict[str, str]:
        fields = await read_form(request)
        check_form(fields, self._form_secret(request))
        return fields

    def _form_secret(self, request: Request) -> str | None:
        return self._sessions.form_secret(session_in(request.headers.get("cookie", "")) or "")


def _read(values: Any) -> CodeRequest:
    try:
        return read_request(values)
    except Refused as refused:
        raise Invalid(refused.message, remedy="Nothing was sent anywhere. Start again in the terminal: `carrel login`.") from None


def _approves(said: str | None) -> bool:
    if said not in ("approve", "refuse"):
        raise Invalid("The form does not say what was decided.", remedy="Load the page again and press one of its buttons.")
    return said == "approve"
