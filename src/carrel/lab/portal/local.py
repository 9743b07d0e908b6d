"""Sign-in by what the lab itself knows: invitations that are opened in the browser, and passwords;
and the page on which users change theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.control.tokens import BROWSER
from carrel.core.domain.errors import CarrelError, Conflict, Denied, Invalid, TooMany, Unauthenticated
from carrel.core.domain.user import Caller
from carrel.lab.credentials import LocalSignIn
from carrel.lab.gateway.gate import same_origin
from carrel.lab.portal.entrance import checked_form, read_form
from carrel.lab.portal.requests import caller_of, number_in
from carrel.lab.portal.sign_in_methods import Admits, local_path
from carrel.lab.portal.templating import Templates

PATH = "/my-sign-in"
_STATUS: dict[type[CarrelError], int] = {Denied: 403, Conflict: 409, TooMany: 429}


class MySignIn:
    """``/my-sign-in``, with its buttons."""

    def __init__(self, local: LocalSignIn, look: Templates) -> None:
        self._local = local
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The routes of this page."""
        return [
            Route(PATH, self.page, methods=["GET"]),
            Route(f"{PATH}/password", self.change_password, methods=["POST"]),
            Route(f"{PATH}/browsers/{{number}}/end", self.end_browser, methods=["POST"]),
        ]

    def page(self, request: Request) -> Response:
        """What there is."""
        return self._show(request)

    async def change_password(self, request: Request) -> Response:
        """Choose a password, or another one."""

        def change(caller: Caller, fields: dict[str, str]) -> None:
            new = fields.get("password", "")
            if new != fields.get("again", ""):
                raise Invalid("The two new passwords differ.", remedy="Type the same one twice.")
            self._local.change_password(caller, fields.get("old", ""), new)

        return await self._do(request, "password", change)

    async def end_browser(self, request: Request) -> Response:
        """Sign another browser out."""
        number = number_in(request.path_params["number"]) or 0

        def end(caller: Caller, _fields: dict[str, str]) -> None:
            self._local.tokens.revoke(caller, number)

        return await self._do(request, "browser", end)

    async def _do(self, request: Request, done: str, act: Callable[[Caller, dict[str, str]], None]) -> Response:
        fields = await checked_form(request, self._look)
        caller = caller_of(request)

        def answer() -> Response:
            try:
                act(caller, fields)
            except (Invalid, Denied, Conflict, TooMany) as error:
                shown = self._show(request, problem=error, status=_STATUS.get(type(error), 422))
                if isinstance(error, TooMany):
                    shown.headers["Retry-After"] = str(error.retry_after)
                return shown
            return RedirectResponse(f"{PATH}?done={done}", 303)

        return await to_thread.run_sync(answer)

    def _show(self, request: Request, *, problem: CarrelError | None = None, status: int = 200) -> Response:
        caller = caller_of(request)
        now = self._local.clock()
        browsers = [
            {
                "id": one.id,
                "how": one.name.removeprefix(BROWSER),
                "since": _moment(one.created_at),
                "used": _moment(one.last_used_at),
            }
            for one in self._local.tokens.list(caller)
            if one.valid(now) and one.name.startswith(BROWSER)
        ]
        return self._look.page(
            request,
            "my_sign_in.html",
            status=status,
            problem=problem,
            done=_DONE.get(request.query_params.get("done", "")) if problem is None else None,
            has_password=self._local.has_password(caller),
            browsers=browsers,
            here=caller.token_id,
            may_change=not self._local.is_less(caller),
        )


_DONE = {
    "password": "Your password is changed.",
    "browser": "That browser is signed out.",
}


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


_LONGEST_NAME = 255
#: What is asked for on these pages stays on none: no cache keeps them. A code is never in an address that is sent.
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "same-origin"}


class LocalPages:
    """Implements `carrel.lab.portal.sign_in_methods.SignInMethod`, with pages of its own (`use` gives their look)."""

    template = "sign_in_local.html"
    public = frozenset({"/invitation", "/sign-in/password"})
    changing: frozenset[str] = frozenset()
    known: Mapping[str, Any] = {}

    def __init__(self, local: LocalSignIn) -> None:
        self._local = local
        self._look: Templates | None = None

    def use(self, look: Templates) -> None:
        """Show pages by these templates."""
        self._look = look

    def own(self) -> MySignIn:
        """The page of who is signed in."""
        assert self._look is not None
        return MySignIn(self._local, self._look)

    def routes(self, door: Admits) -> list[BaseRoute]:
        """The routes of these pages."""

        async def password(request: Request) -> Response:
            return await self._by_password(request, door)

        async def invitation(request: Request) -> Response:
            return await self._by_invitation(request, door)

        return [
            Route("/sign-in/password", password, methods=["POST"]),
            Route("/invitation", self.invitation, methods=["GET"]),
            Route("/invitation", invitation, methods=["POST"]),
        ]

    # ---- by name and password

    async def _by_password(self, request: Request, door: Admits) -> Response:
        fields = await own_form(request)
        after = request.state.after = local_path(fields.get("after"))
        name, password = fields.get("name", "").strip(), fields.get("password", "")
        request.state.typed_name = name[:_LONGEST_NAME]
        if not name or len(name) > _LONGEST_NAME or not password:
            raise Unauthenticated("The name or the password is missing.")

        def sign_in() -> Response:
            if self._local.people.get(name) is not None:  # what nobody is called may be a password in the wrong field
                request.state.tried = name
            proof = self._local.by_password(name, password, address_of(request))
            return door.admit(request, proof.subject, how="by password", after=after, confirm=proof.confirm)

        return await to_thread.run_sync(sign_in)

    # ---- by invitation

    def invitation(self, request: Request) -> Response:
        """The page that the link of an invitation opens. Its code is in the fragment, which browsers send to nobody."""
        return self._page(request, code=None, name=None, problem=None)

    async def _by_invitation(self, request: Request, door: Admits) -> Response:
        fields = await own_form(request)
        code = fields.get("code", "").strip().rpartition("#")[2]

        def answer() -> Response:
            return self._choose(request, door, code, fields)

        return await to_thread.run_sync(answer)

    def _choose(self, request: Request, door: Admits, code: str, fields: dict[str, str]) -> Response:
        try:
            name = self._local.invited(code).user.name
        except CarrelError as error:
            return self._page(request, code=None, name=None, problem=error, status=401)
        request.state.tried = name
        password = fields.get("password")
        if password is None:
            return self._page(request, code=code, name=name, problem=None)
        try:
            if password != fields.get("again", password):
                raise Invalid("The two passwords differ.", remedy="Type the same one twice.")
            proof = self._local.choose_password(code, password)
        except Invalid as error:
            return self._page(request, code=code, name=name, problem=error, status=422)
        except Unauthenticated as error:
            return self._page(request, code=None, name=None, problem=error, status=401)
        return door.admit(request, proof.subject, how="by invitation", confirm=proof.confirm)

    def _page(
        self, request: Request, *, code: str | None, name: str | None, problem: CarrelError | None, status: int = 200
    ) -> Response:
        return self.page(request, "invitation.html", status=status, code=code, name=name, problem=problem)

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """A page that no cache keeps."""
        assert self._look is not None
        response = self._look.page(request, template, status=status, **values)
        response.headers.update(_HEADERS)
        return response


async def own_form(request: Request) -> dict[str, str]:
    """The fields of a form of the lab's own pages. Raises `Denied` when another site sent it."""
    if not same_origin(request.headers):
        raise Denied("This request comes from another site.", remedy="Use the lab's own pages.")
    return await read_form(request)


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client is not None else ""
