"""The pages of challenges: what there are, one with its pages, board and submissions, and the buttons of those who take part."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from urllib.parse import quote

from anyio import to_thread
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.challenge import (
    ChallengeSubmission,
    ChallengeView,
    Choice,
    Final,
    PhaseView,
    SubmissionState,
    SubmissionView,
)
from carrel.core.domain.errors import CarrelError, Conflict, Denied, Impossible, Invalid, NotFound
from carrel.core.domain.session import SessionKind
from carrel.core.domain.user import Caller
from carrel.lab.gateway.boundary import DATA_POLICY
from carrel.lab.gateway.challenges import Challenges
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.errors import problem_of
from carrel.lab.portal.challenge_plots import courses_of
from carrel.lab.portal.entrance import check_form, checked_form
from carrel.lab.portal.multipart import FewAtOnce, UploadedFile, in_threads, read_upload
from carrel.lab.portal.notebooks import asked_in, last_settings
from carrel.lab.portal.requests import caller_of
from carrel.lab.portal.templating import Templates

#: Submissions on the page; the command line has all.
_LISTED = 50
#: What the names of fields begin with that choose a submission; its number follows.
_CHOSEN = "submission-"
#: Notices on the page.
_NOTICES = 20
#: What the fields of answers begin with.
_ANSWER = "answer-"


class ChallengePages:
    """``/challenges`` and ``/challenges/{name}``."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._look = look
        self._few = FewAtOnce()
        # What organisers write is text of a user's: HTML in it is shown as it is written.
        self._markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")

    def routes(self) -> list[BaseRoute]:
        """The routes of these pages."""
        one = "/challenges/{name}"
        return [
            Route("/challenges", self.all, methods=["GET"]),
            Route(one, self.one, methods=["GET"]),
            Route(f"{one}/join", self.join, methods=["POST"]),
            Route(f"{one}/team", self.team, methods=["POST"]),
            Route(f"{one}/choose", self.choose, methods=["POST"]),
            Route(f"{one}/start", self.start, methods=["POST"]),
            Route(f"{one}/submit", self.submit, methods=["POST"]),
            Route(f"{one}/try", self.try_out, methods=["POST"]),
            Route(f"{one}/sample", self.sample, methods=["POST"]),
        ]

    def all(self, request: Request) -> Response:
        """Those that the caller may see."""
        found = self._challenges.list(caller_of(request)).challenges
        return self._look.page(request, "challenges.html", found=found, moment=self._look.moment)

    def one(self, request: Request) -> Response:
        """One challenge. With ``part=live`` only what changes."""
        return self._one(request)

    def _one(self, request: Request, problem: CarrelError | None = None) -> Response:
        caller, name = caller_of(request), request.path_params["name"]
        last_event = self._gateway.lab.last_event_id()
        found = self._challenges.view(caller, name)
        phase = request.query_params.get("phase") or None
        live = request.query_params.get("part") == "live"
        sees = found.team is not None or found.organised
        sent = self._challenges.sent(caller, name).submissions if sees else ()
        board = self._challenges.board(caller, name, phase)
        return self._look.page(
            request,
            "challenge_live.html" if live else "challenge.html",
            status=problem_of(problem)[0].status if problem is not None else 200,
            challenge=found,
            pages={} if live else {title: self._html(text) for title, text in found.pages.items()},
            rules="" if live or not found.rules else self._html(found.rules),
            board=board,
            courses=courses_of(board, [one.submission for one in sent], found.team.name) if found.team else (),
            sent=sent[:_LISTED],
            more=len(sent) - _LISTED,
            now=next((one for one in found.phases if one.name == found.phase), None),
            choices=self._choices(found, sent) if found.team and found.state == "published" else None,
            moment=self._look.moment,
            going_on=any(not one.submission.state.ended for one in sent),
            problem=problem,
            last_event=last_event,
            samples=self._gateway.samples.list(caller, name) if found.sampling and found.team and not live else None,
            notices=self._gateway.organising.list(caller, name).notices[:_NOTICES],
        )

    def _choices(
        self, found: ChallengeView, sent: Sequence[SubmissionView]
    ) -> tuple[PhaseView, Final, Sequence[ChallengeSubmission]] | None:
        """The final for which a team chooses now, and what it chooses from; None: it does not."""
        coming = next((one for one in found.phases if one.final and one.begin > self._gateway.lab.clock()), None)
        if coming is None or coming.final is None or coming.final.choose is not Choice.TEAM:
            return None
        there = [one.submission for one in sent if one.submission.phase == coming.final.source]
        mine = [one for one in there if one.state is not SubmissionState.FAILED]
        return coming, coming.final, mine

    # ---- buttons

    async def join(self, request: Request) -> Response:
        """Take part, in a new team or in one that is there."""
        fields = await checked_form(request, self._look)

        def join(caller: Caller, name: str) -> str:
            accepts = fields.get("accept_rules") == "yes"
            asked = {key.removeprefix(_ANSWER): one for key, one in fields.items() if key.startswith(_ANSWER) and one}
            team, code = fields.get("team", ""), fields.get("code", "").strip()
            self._gateway.participating.join(caller, name, team=team, code=code, accepts=accepts, answers=asked)
            return f"/challenges/{quote(name)}"

        return await self._press(request, join)

    async def team(self, request: Request) -> Response:
        """Give one's team a new code, leave it, ask another one to merge, or agree."""
        fields = await checked_form(request, self._look)

        def change(caller: Caller, name: str) -> str:
            if fields.get("act") == "invite":
                self._gateway.participating.invite(caller, name)
            elif fields.get("act") == "leave":
                self._gateway.participating.leave(caller, name)
            else:
                self._gateway.participating.merge(caller, name, code=fields.get("code", "").strip(), team=fields.get("team", ""))
            return f"/challenges/{quote(name)}"

        return await self._press(request, change)

    async def choose(self, request: Request) -> Response:
        """Choose what goes on to the final: a field for each submission."""
        fields = await checked_form(request, self._look)

        def choose(caller: Caller, name: str) -> str:
            numbers = [
                int(key.removeprefix(_CHOSEN)) for key in fields if re.fullmatch(rf"{_CHOSEN}[0-9]{{1,18}}", key, re.ASCII)
            ]
            self._gateway.participating.choose(caller, name, numbers)
            return f"/challenges/{quote(name)}#final"

        return await self._press(request, choose)

    async def start(self, request: Request) -> Response:
        """Put what it begins with among the caller's files, and go to a new notebook there."""
        await checked_form(request, self._look)

        def start(caller: Caller, name: str) -> str:
            self._gateway.participating.begin(caller, name)
            sessions = self._gateway.sessions
            if sessions is None:
                raise Conflict("This lab offers no sessions.", remedy=f"`carrel challenge start {name}`.")
            # What runs already sees the data only if it began after its owner has joined: a new one does in any case.
            submitted = sessions.start(caller, asked_in({**last_settings(self._gateway, caller), "kind": SessionKind.NOTEBOOK}))
            return f"/notebooks/{submitted.job.id}?go=yes&path={quote(self._gateway.participating.notebook(caller, name))}"

        return await self._press(request, start)

    async def submit(self, request: Request) -> Response:
        """Send what was uploaded."""

        def submit(caller: Caller, name: str, code: str) -> str:
            self._gateway.participating.submit(caller, name, code)
            return f"/challenges/{quote(name)}#submissions"

        return await self._with_code(request, submit)

    async def try_out(self, request: Request) -> Response:
        """Run what was uploaded on training data, and go to its job."""

        def try_out(caller: Caller, name: str, code: str) -> str:
            return f"/jobs/{self._gateway.participating.try_out(caller, name, code)[0]}"

        return await self._with_code(request, try_out)

    async def sample(self, request: Request) -> Response:
        """Give a file of training data that are shown one by one, as a download."""
        fields = await checked_form(request, self._look)

        def show(caller: Caller, name: str) -> Response:
            content = self._gateway.samples.show(caller, name, wanted := fields.get("sample", ""))
            headers = {
                "Content-Disposition": f"attachment; filename*=UTF-8''{quote(PurePosixPath(wanted).name, safe='')}",
                "Content-Security-Policy": DATA_POLICY,
            }
            return Response(content, headers=headers, media_type="application/octet-stream")

        return await self._press(request, show)

    async def _with_code(self, request: Request, act: Callable[[Caller, str, str], str]) -> Response:
        async with self._few.one(caller_of(request)), in_threads(self._gateway.incoming.directory()) as scratch:
            fields, files = await read_upload(request, scratch)
            check_form(fields, self._look.form_secret(request))

            return await self._press(request, lambda caller, name: act(caller, name, self._code(caller, files)))

    def _code(self, caller: Caller, files: Sequence[UploadedFile]) -> str:
        if not files:
            raise Invalid("No file was chosen.", remedy="Choose a .zip, a .py file, or a folder.")
        return self._gateway.incoming.files(caller, [(one.name, one.path) for one in files]).snapshot

    async def _press(self, request: Request, act: Callable[[Caller, str], str | Response]) -> Response:
        """Do what a button says, which answers or names the page to go to; what is refused is told on the challenge's page."""

        def answer() -> Response:
            try:
                found = act(caller_of(request), request.path_params["name"])
                return RedirectResponse(found, 303) if isinstance(found, str) else found
            except (Invalid, Impossible, Denied, Conflict, NotFound) as error:
                return self._one(request, error)

        return await to_thread.run_sync(answer)

    # ---- parts

    @property
    def _challenges(self) -> Challenges:
        return self._gateway.challenges

    def _html(self, text: str) -> Markup:
        # Headings of the page itself come before these.
        tokens = self._markdown.parse(text)
        for token in tokens:
            if token.type in ("heading_open", "heading_close"):
                token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
        html = self._markdown.renderer.render(tokens, self._markdown.options, {})
        return Markup(html.replace("<pre>", '<pre tabindex="0">'))
