"""The page "Your sign-in": one's password and browsers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.control.tokens import BROWSER
from carrel.core.domain.errors import CarrelError, Conflict, Denied, Invalid, TooMany
from carrel.core.domain.user import Caller
from carrel.lab.credentials import LocalSignIn
from carrel.lab.portal.entrance import check_form, read_form
from carrel.lab.portal.requests import caller_of, number_in
from carrel.lab.portal.signin import Sessions
from carrel.lab.portal.templating import Templates

PATH = "/my-sign-in"
_STATUS: dict[type[CarrelError], int] = {Denied: 403, Conflict: 409, TooMany: 429}


class MySignIn:
    """``/my-sign-in``, with its buttons."""

    def __init__(self, local: LocalSignIn, sessions: Sessions, look: Templates) -> None:
        self._local = local
        self._sessions = sessions
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
        fields = await self._form(request)
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

    async def _form(self, request: Request) -> dict[str, str]:
        fields = await read_form(request)
        check_form(fields, self._form_secret(request))
        return fields

    def _form_secret(self, request: Request) -> str | None:
        return self._sessions.form_secret(self._sessions.session_in(request.headers.get("cookie", "")) or "")

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
            form_secret=self._form_secret(request),
        )


_DONE = {
    "password": "Your password is changed.",
    "browser": "That browser is signed out.",
}


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
