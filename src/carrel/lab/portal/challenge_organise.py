"""The page of those who organise a challenge: questions, quotas, what failed and why, likeness; and the question of others."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.challenge_notice import NoticeKind
from carrel.core.domain.errors import CarrelError, Conflict, Denied, Invalid, NotFound
from carrel.core.domain.user import Caller
from carrel.lab.gateway.challenge_organising import Organising
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.errors import problem_of
from carrel.lab.portal.entrance import checked_form
from carrel.lab.portal.requests import caller_of
from carrel.lab.portal.templating import Templates

#: Lines of each table; the command line has all.
_LISTED = 100


class OrganisePage:
    """``/challenges/{name}/organise``."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway, self._look = gateway, look

    def routes(self) -> list[BaseRoute]:
        """The routes of the page."""
        one = "/challenges/{name}"
        return [
            Route(f"{one}/organise", self.look, methods=["GET"]),
            Route(f"{one}/organise", self.organise, methods=["POST"]),
            Route(f"{one}/ask", self.ask, methods=["POST"]),
        ]

    def look(self, request: Request) -> Response:
        """The page. With ``likeness=PHASE`` it has the pairs of that phase."""
        return self._page(request)

    def _page(self, request: Request, problem: CarrelError | None = None) -> Response:
        caller, name = caller_of(request), request.path_params["name"]
        report = self._organising.report(caller, name)
        phase = request.query_params.get("likeness")
        told = self._organising.list(caller, name).notices
        asked = [one for one in told if one.kind is NoticeKind.QUESTION]
        return self._look.page(
            request,
            "challenge_organise.html",
            status=problem_of(problem)[0].status if problem is not None else 200,
            report=report,
            challenge=self._gateway.challenges.view(caller, name),
            questions=[one for one in asked if not one.answer] + [one for one in asked if one.answer][:_LISTED],
            failures=report.failures[:_LISTED],
            likeness=self._organising.likeness(caller, name, phase) if phase else None,
            moment=self._look.moment,
            problem=problem,
        )

    # ---- buttons

    async def organise(self, request: Request) -> Response:
        """Announce, answer, or give a team submissions more."""
        fields = await checked_form(request, self._look)

        def act(caller: Caller, name: str) -> str:
            said, number = fields.get("text", ""), _number(fields, "number")
            match fields.get("act"):
                case "announce":
                    self._organising.announce(caller, name, said)
                case "answer":
                    self._organising.answer(caller, name, number, said, publish=fields.get("publish") == "yes")
                case "quota":
                    team, when = fields.get("team", ""), fields.get("when")
                    more = {"today": 0, "total": 0, "today" if when == "today" else "total": number}
                    self._organising.grant(caller, name, team, **more, reason=said)
                case _:
                    raise Invalid("The form has no button of this page.", remedy="Load the page again.")
            return f"/challenges/{quote(name)}/organise"

        return await self._press(request, act, self._page)

    async def ask(self, request: Request) -> Response:
        """Ask the organisers something."""
        fields = await checked_form(request, self._look)

        def ask(caller: Caller, name: str) -> str:
            self._organising.ask(caller, name, fields.get("text", ""))
            return f"/challenges/{quote(name)}#notices"

        return await self._press(request, ask, None)

    async def _press(
        self, request: Request, act: Callable[[Caller, str], str], again: Callable[[Request, CarrelError], Response] | None
    ) -> Response:
        def answer() -> Response:
            try:
                return RedirectResponse(act(caller_of(request), request.path_params["name"]), 303)
            except (Invalid, Denied, Conflict, NotFound) as error:
                if again is None or isinstance(error, Denied):
                    raise
                return again(request, error)

        return await to_thread.run_sync(answer)

    @property
    def _organising(self) -> Organising:
        return self._gateway.organising


def _number(fields: dict[str, str], name: str) -> int:
    """A number of a form; 0 where it is left out. Raises `Invalid`."""
    text = fields.get(name, "0")
    if not text.removeprefix("-").isdecimal() or len(text) > 9:
        raise Invalid(f'"{text[:20]}" is not a whole number.', remedy="Write one.")
    return int(text)
