"""The page of one's own things: access tokens, secrets and environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.control.tokens import BROWSER
from carrel.core.domain.errors import CarrelError, Conflict, Denied, Invalid, NotFound
from carrel.core.domain.nouns import SECRETS
from carrel.core.domain.secret import Secret
from carrel.core.domain.units import parse_duration
from carrel.core.domain.user import Caller
from carrel.core.policy.access import ALL, CHOICES, Action, allowed
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.errors import problem_of
from carrel.lab.portal.entrance import checked_form
from carrel.lab.portal.requests import caller_of, number_in
from carrel.lab.portal.templating import Templates

PATH = "/account"
_DONE = {
    "token": "The token is void.",
    "secret": "The secret is kept. Its value is shown to no page; tasks that name it get it.",
    "no-secret": "The secret is forgotten.",
    "environment": "The environment is removed.",
}


class AccountPage:
    """``/account``."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._lab = gateway.lab
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The routes of the page."""
        return [
            Route(PATH, self.page, methods=["GET"]),
            Route(f"{PATH}/tokens", self.make_token, methods=["POST"]),
            Route(f"{PATH}/tokens/{{number}}/revoke", self.revoke_token, methods=["POST"]),
            Route(f"{PATH}/secrets", self.put_secret, methods=["POST"]),
            Route(f"{PATH}/secrets/{{name}}/remove", self.remove_secret, methods=["POST"]),
            Route(f"{PATH}/environments/remove", self.remove_environment, methods=["POST"]),
        ]

    def page(self, request: Request) -> Response:
        """What the caller has."""
        return self._page(request)

    # ---- buttons

    async def make_token(self, request: Request) -> Response:
        """Make an access token; it is shown once, on the answer."""

        def make(caller: Caller, fields: dict[str, str]) -> Response:
            scope = fields.get("scope", "") or ALL
            if scope not in CHOICES:
                raise Invalid(f'A token cannot be good for "{scope[:40]}".', remedy="Use the form on the page.")
            lifetime = parse_duration(fields.get("lifetime", "").strip() or "90d")
            name = fields.get("name", "").strip()
            made, text = self._lab.tokens.create(caller, name=name, scopes=[scope], lifetime=lifetime)
            return self._page(request, token=text, made=made)

        return await self._do(request, make)

    async def revoke_token(self, request: Request) -> Response:
        """End a token."""
        number = number_in(request.path_params["number"]) or 0
        return await self._do(request, lambda caller, _: self._lab.tokens.revoke(caller, number), "token")

    async def put_secret(self, request: Request) -> Response:
        """Set a secret."""

        def put(caller: Caller, fields: dict[str, str]) -> None:
            allowed(caller, Action.CHANGE_SECRETS).check()
            secret = Secret(name=fields.get("name", "").strip(), value=fields.get("value", ""))
            self._lab.keeper(SECRETS).put(caller, secret)

        return await self._do(request, put, "secret")

    async def remove_secret(self, request: Request) -> Response:
        """Forget a secret."""

        def remove(caller: Caller, _fields: dict[str, str]) -> None:
            allowed(caller, Action.CHANGE_SECRETS).check()
            self._lab.keeper(SECRETS).remove(caller, request.path_params["name"])

        return await self._do(request, remove, "no-secret")

    async def remove_environment(self, request: Request) -> Response:
        """Remove an environment of the caller's."""

        def remove(caller: Caller, fields: dict[str, str]) -> None:
            allowed(caller, Action.CHANGE_ENVIRONMENT).check()
            self._gateway.environments.remove(caller, fields.get("name", ""))

        return await self._do(request, remove, "environment")

    # ---- parts

    async def _do(self, request: Request, act: Callable[[Caller, dict[str, str]], Response | None], done: str = "") -> Response:
        fields = await checked_form(request, self._look)

        def answer() -> Response:
            try:
                return act(caller_of(request), fields) or RedirectResponse(f"{PATH}?done={done}", 303)
            except (Invalid, Denied, Conflict, NotFound) as error:
                return self._page(request, problem=error)

        return await to_thread.run_sync(answer)

    def _page(self, request: Request, *, problem: CarrelError | None = None, **more: Any) -> Response:
        caller, environments = caller_of(request), self._gateway.environments
        tokens = [one for one in self._lab.tokens.list(caller) if one.state == "valid" and not one.name.startswith(BROWSER)]
        mine = environments.list(caller)
        return self._look.page(
            request,
            "account.html",
            status=problem_of(problem)[0].status if problem is not None else 200,
            problem=problem,
            done=_DONE.get(request.query_params.get("done", "")) if problem is None else None,
            tokens=tokens,
            secrets=self._lab.keeper(SECRETS).list(caller),
            environments=mine,
            scopes=CHOICES,
            account=self._lab.policy.charged(caller.user),
            **{"token": None, "made": None, **more},
        )
