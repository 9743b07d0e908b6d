"""The pages as the gateway mounts them: who is signed in, and how everything that goes wrong looks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from carrel.core.domain.errors import Denied
from carrel.core.domain.ports import Clock
from carrel.core.domain.user import Caller
from carrel.lab.gateway.context import Gateway
from carrel.lab.portal.account import AccountPage
from carrel.lab.portal.administration import AdministrationPage, may_administer
from carrel.lab.portal.challenge_organise import OrganisePage
from carrel.lab.portal.challenges import ChallengePages
from carrel.lab.portal.comparison import BaselinePage, ComparisonPage
from carrel.lab.portal.consent import ConsentPages
from carrel.lab.portal.entrance import Entrance
from carrel.lab.portal.help import HelpPages, help_of
from carrel.lab.portal.local import LocalPages
from carrel.lab.portal.machines import MachinesPage, has_fabric
from carrel.lab.portal.new_task import NewTaskPage
from carrel.lab.portal.notebooks import NotebookPages
from carrel.lab.portal.outputs import OutputPages
from carrel.lab.portal.pages import JobPages, ReferencePage
from carrel.lab.portal.rules import RulesPage
from carrel.lab.portal.sign_in_methods import SignInMethod, local_path
from carrel.lab.portal.signin import Sessions, Tickets
from carrel.lab.portal.sweeps import SweepPages
from carrel.lab.portal.templating import Templates
from carrel.lab.portal.use import UsePage
from carrel.wire.v1 import Problem

_STATIC = Path(__file__).parent / "static"


class Portal:
    """Implements `carrel.lab.gateway.Pages`. `tickets` makes the one-time links that sign a browser in."""

    public_under: tuple[str, ...] = ("/static/",)

    def __init__(
        self,
        *,
        clock: Clock,
        first: Sequence[SignInMethod] = (),
        ways: Sequence[SignInMethod] = (),
        local: LocalPages | None = None,
    ) -> None:
        """How people sign in, beside the links and access tokens that are always good.

        `local`: by what the lab knows of them; `first` stands before that on the page, `ways` after it.
        """
        self._ways: tuple[SignInMethod, ...] = (*first, *((local,) if local is not None else ()), *ways)
        self.public = frozenset({"/login", "/docs", "/favicon.ico"}).union(*(way.public for way in self._ways))
        self.changing = frozenset[str]().union(*(way.changing for way in self._ways))
        self.tickets = Tickets(clock)
        self.sessions = Sessions()
        self._look = Templates(clock)
        self._local = local
        self._look.know(has_own_sign_in=local is not None)
        for way in self._ways:
            self._look.know(**way.known)
        if local is not None:
            local.use(self._look)

    def session_token(self, cookie: str) -> str | None:
        """The access token behind the session in a Cookie header, or None."""
        session = self.sessions.session_in(cookie)
        return None if session is None else self.sessions.token(session)

    def link(self, caller: Caller) -> str:
        """The path of a link that signs one browser in as the caller, once, within ten minutes. Raises `Denied` for a job's."""
        if caller.token_id is None:
            raise Denied("A job signs no browser in.", remedy="Use a token of your own.")
        return f"/login?ticket={self.tickets.issue(caller.token_id)}"

    def install(self, app: FastAPI, gateway: Gateway) -> None:
        """Add the routes of the pages."""
        self.sessions.use(gateway.lab.secret, gateway.lab.lab_id)
        self._look.form_secret = self._form_secret
        self._look.administers = may_administer
        pages = JobPages(gateway, self._look)
        comparison = ComparisonPage(gateway, self._look)
        notebooks = NotebookPages(gateway, self._look)
        self._look.offers_sessions = gateway.sessions is not None
        self._look.tracking = lambda: _tracking(gateway)
        self._look.short = gateway.lab.storage.short
        self._look.know(reasons=gateway.settings.reasons, help_of=help_of)
        sweeps = SweepPages(gateway, self._look)
        use = UsePage(gateway, self._look)
        baselines = BaselinePage(gateway, self._look)
        self._look.know(offers_machines=has_fabric(gateway))
        entrance = Entrance(gateway, self.tickets, self.sessions)
        reference = ReferencePage(app, self._look)
        app.router.routes.extend(
            [
                *comparison.routes(),
                *pages.routes(),
                *AdministrationPage(gateway, self._look).routes(),
                *RulesPage(gateway, self._look).routes(),
                *AccountPage(gateway, self._look).routes(),
                *HelpPages(self._look).routes(),
                *OutputPages(gateway, self._look).routes(),
                *NewTaskPage(gateway, self._look).routes(),
                *notebooks.routes(),
                *sweeps.routes(),
                *use.routes(),
                *baselines.routes(),
                *(MachinesPage(gateway, self._look).routes() if has_fabric(gateway) else ()),
                *ChallengePages(gateway, self._look).routes(),
                *OrganisePage(gateway, self._look).routes(),
                *entrance.routes(),
                *reference.routes(),
            ]
        )
        if gateway.issuer is not None:
            app.router.routes.extend(ConsentPages(gateway.issuer, self._look).routes())
        for way in self._ways:
            app.router.routes.extend(way.routes(entrance))
        if self._local is not None:
            app.router.routes.extend(self._local.own().routes())
        app.router.routes.append(Mount("/static", StaticFiles(directory=_STATIC)))

    def problem_page(self, request: Request, problem: Problem) -> Response:
        """`problem` for a person; when it is 401, the page that says how to sign in."""
        if problem.status == 401:
            after = local_path(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
            return self._look.page(
                request,
                "sign_in.html",
                status=401,
                problem=problem,
                after=getattr(request.state, "after", "/")
                if request.method != "GET" or request.url.path in self.public
                else after,
                ways=[way.template for way in self._ways],
                typed_name=getattr(request.state, "typed_name", ""),
            )
        return self._look.page(request, "problem.html", status=problem.status, problem=problem)

    def _form_secret(self, request: Request) -> str | None:
        return self.sessions.form_secret(self.sessions.session_in(request.headers.get("cookie", "")) or "")


def _tracking(gateway: Gateway) -> dict[str, str] | None:
    status = gateway.tracking_status()
    if status.state == "off":
        return None
    return {"state": status.state, "message": status.message, "url": f"{gateway.settings.tracking_path}/"}
