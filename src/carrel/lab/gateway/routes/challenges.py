"""Challenges: shared tasks whose test data no participant sees."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from carrel.core.domain.challenge import Board, Challenge, ChallengeLines, ChallengeView, SubmissionList, SubmissionView, TeamView
from carrel.lab.gateway.context import LARGEST, NO_ZERO, Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import API, CodeRequest, DryRunView, StarterView, TeamRequest

router = APIRouter(prefix=f"{API}/challenges", tags=["challenges"], route_class=Endpoint)

Name = Annotated[str, Path(max_length=64, pattern=NO_ZERO, description="Name of the challenge.")]
Number = Annotated[int, Path(ge=1, le=LARGEST, description="Number of the submission.")]


@router.get("", summary="List challenges")
def list_challenges(ctx: Ctx, who: Who) -> ChallengeLines:
    """Those that are published; organisers also see their drafts."""
    return ctx.challenges.list(who)


@router.post("", status_code=201, summary="Send a challenge as a draft (administrators, its organisers)")
def keep_challenge(request: CodeRequest, ctx: Ctx, who: Who) -> Challenge:
    """A directory with a `challenge.yaml`, uploaded as code. Its baselines are sent to each phase; nobody else sees it yet."""
    return ctx.challenges.keep(who, request.snapshot)


@router.get("/{name}", summary="Look at a challenge")
def get_challenge(name: Name, ctx: Ctx, who: Who) -> ChallengeView:
    """Its pages, phases and limits, one's own team, and what is left to it."""
    return ctx.challenges.view(who, name)


@router.get("/{name}/checks", summary="How the baselines of a draft are doing (organisers)")
def get_checks(name: Name, ctx: Ctx, who: Who) -> SubmissionList:
    """One for each baseline and phase; without a draft, those of what is published."""
    return ctx.challenges.checks(who, name)


@router.post("/{name}/publish", summary="Show the draft to everybody (organisers)")
def publish(name: Name, ctx: Ctx, who: Who) -> Challenge:
    """409 until all its baselines were scored."""
    return ctx.challenges.publish(who, name)


@router.post("/{name}/freeze", summary="End a challenge (organisers)")
def freeze(name: Name, ctx: Ctx, who: Who) -> Challenge:
    """It takes nothing any more; boards stay. Again changes nothing."""
    return ctx.challenges.freeze(who, name)


@router.post("/{name}/join", summary="Take part in a challenge")
def join(name: Name, request: TeamRequest, ctx: Ctx, who: Who) -> TeamView:
    """Makes a team, or joins the one whose `code` is sent. Again changes nothing."""
    return ctx.challenges.join(who, name, team=request.team, code=request.code, accepts=request.accept_rules)


@router.post("/{name}/start", summary="Put what a challenge begins with among the files of one's sessions")
def begin(name: Name, ctx: Ctx, who: Who) -> StarterView:
    """Files that are there stay as they are. `directory` is relative to these files."""
    return StarterView(directory=ctx.challenges.begin(who, name))


@router.get("/{name}/board", summary="Who is first")
def get_board(
    name: Name,
    ctx: Ctx,
    who: Who,
    phase: Annotated[str | None, Query(max_length=64, description="Default: the one of now.")] = None,
) -> Board:
    """The best submission of each team in a phase."""
    return ctx.challenges.board(who, name, phase)


@router.get(
    "/{name}/starter",
    summary="What participants begin with",
    response_class=Response,
    responses={
        200: {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}, "description": "Its archive."}
    },
)
def get_starter(name: Name, ctx: Ctx, who: Who) -> Response:
    """The archive of a directory."""
    with ctx.challenges.starter(who, name) as archive:
        return Response(archive.read(), media_type="application/x-tar")


@router.get("/{name}/submissions", summary="List submissions of one's own team, newest first")
def list_submissions(name: Name, ctx: Ctx, who: Who) -> SubmissionList:
    """Organisers see those of all teams."""
    return ctx.challenges.sent(who, name)


@router.post("/{name}/submissions", status_code=201, summary="Send code to a challenge")
def submit(name: Name, request: CodeRequest, ctx: Ctx, who: Who) -> SubmissionView:
    """Code that was uploaded, to the phase of now. 409 where no phase takes any, or nothing is left."""
    return ctx.challenges.submit(who, name, request.snapshot)


@router.get("/{name}/submissions/{number}", summary="Look at a submission")
def get_submission(name: Name, number: Number, ctx: Ctx, who: Who) -> SubmissionView:
    """Its state, why it waits or failed, and its scores."""
    return ctx.challenges.submission(who, name, number)


@router.get(
    "/{name}/submissions/{number}/log",
    summary="The log of a submission's last job (organisers)",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Its end."}},
)
def get_log(name: Name, number: Number, ctx: Ctx, who: Who) -> Response:
    """Its last 256 KiB. It may show what the programs saw, so teams do not get it."""
    return Response(ctx.challenges.log(who, name, number), media_type="text/plain; charset=utf-8")


@router.post("/{name}/try", status_code=201, summary="Try code on training data")
def try_code(name: Name, request: CodeRequest, ctx: Ctx, who: Who) -> DryRunView:
    """Code that was uploaded, as two tasks of one's own. It counts for no limit. 404 where the challenge has no dry run."""
    ingestion, scoring = ctx.challenges.try_out(who, name, request.snapshot)
    return DryRunView(ingestion=ingestion, scoring=scoring)
