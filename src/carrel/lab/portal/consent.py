"""Where a person lets a program sign in as them: ``/device`` (RFC 8628, 3.3)."""

from __future__ import annotations

from functools import partial
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.sign_in import AuthorizationRequest
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.routes.issuer import address_of
from carrel.lab.portal.entrance import checked_form
from carrel.lab.portal.requests import caller_of
from carrel.lab.portal.templating import Templates
from carrel.lab.signin import Issuer
from carrel.lab.signin.clients import find_client


class ConsentPages:
    """The page and its questions. A person who is not signed in comes back to it afterwards."""

    def __init__(self, issuer: Issuer, look: Templates) -> None:
        self._issuer = issuer
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The routes of these pages."""
        return [
            Route("/device", self.device, methods=["GET"]),
            Route("/device", self.decide_device, methods=["POST"]),
        ]

    def device(self, request: Request) -> Response:
        """Enter a code; with one in the address, the question at once."""
        text = request.query_params.get("user_code", "")
        if not text or request.method == "HEAD":
            return self._enter(request)
        return self._ask_about_device(request, text)

    async def decide_device(self, request: Request) -> Response:
        """A code was typed, or the question was answered."""
        fields = await checked_form(request, self._look)
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
            **self._words(device.asked),
        )

    def _ask_about_device(self, request: Request, text: str) -> Response:
        try:
            user_code, device = self._issuer.waiting(caller_of(request), text, address=address_of(request))
        except NotFound as error:
            tell_audit(request.scope, action="enter a code", rule="user code")
            return self._enter(request, typed=text[:20], problem=f"{error.message} {error.remedy}")
        return self._look.page(
            request,
            "consent.html",
            user_code=user_code,
            asked_at=self._look.moment(device.created_at),
            **self._words(device.asked),
        )

    def _enter(self, request: Request, *, typed: str = "", problem: str = "") -> Response:
        return self._look.page(
            request,
            "device.html",
            status=404 if problem else 200,
            typed=typed,
            problem=problem,
        )

    def _words(self, asked: AuthorizationRequest) -> dict[str, Any]:
        return {"command": find_client(asked.client).name, "asked": asked}


def _approves(said: str | None) -> bool:
    if said not in ("approve", "refuse"):
        raise Invalid("The form does not say what was decided.", remedy="Load the page again and press one of its buttons.")
    return said == "approve"
