"""Challenges: shared tasks whose test data no participant sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from carrel.core.domain.challenge import (
    Board,
    Challenge,
    ChallengeLines,
    ChallengeView,
    Rescore,
    SubmissionList,
    SubmissionView,
    TeamView,
)
from carrel.core.domain.challenge_notice import ChallengeNotice, NoticeList
from carrel.core.domain.challenge_report import ChallengeReport, Likeness
from carrel.core.domain.challenge_sample import SampleList
from carrel.lab.gateway.context import LARGEST, NO_ZERO, Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import (
    API,
    AnswerRequest,
    ChoiceRequest,
    CodeRequest,
    DryRunView,
    MergeRequest,
    PublishRequest,
    QuotaRequest,
    SampleRequest,
    StarterView,
    TeamRequest,
    TextRequest,
)

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
    return ctx.publishing.keep(who, request.snapshot)


@router.get("/{name}", summary="Look at a challenge")
def get_challenge(
    name: Name, ctx: Ctx, who: Who, draft: Annotated[bool, Query(description="As its draft will be (organisers).")] = False
) -> ChallengeView:
    """Its pages, phases and limits, one's own team, and what is left to it."""
    return ctx.challenges.view(who, name, draft=draft)


@router.get("/{name}/checks", summary="How the baselines of a draft are doing (organisers)")
def get_checks(name: Name, ctx: Ctx, who: Who) -> SubmissionList:
    """One for each baseline and phase; without a draft, those of what is published."""
    return ctx.challenges.checks(who, name)


@router.post("/{name}/publish", summary="Show the draft to everybody (organisers)")
def publish(name: Name, ctx: Ctx, who: Who, request: PublishRequest | None = None) -> Challenge:
    """409 until all its baselines were scored, and where it scores otherwise, all that was scored before."""
    asked = request or PublishRequest.model_validate({})
    return ctx.publishing.publish(who, name, reason=asked.reason, without_failed=asked.without_failed)


@router.post(
    "/{name}/rescore", status_code=202, summary="Score all submissions by the draft, from their kept predictions (organisers)"
)
def ask_rescore(name: Name, ctx: Ctx, who: Who) -> Rescore:
    """Each once, and what failed once more. Boards change when the draft is published."""
    return ctx.publishing.rescore(who, name, ask=True)


@router.get("/{name}/rescore", summary="Old scores and ranks beside those by the draft (organisers)")
def get_rescore(name: Name, ctx: Ctx, who: Who) -> Rescore:
    """The submissions that the draft scores otherwise, as far as it has."""
    return ctx.publishing.rescore(who, name)


@router.post("/{name}/freeze", summary="End a challenge (organisers)")
def freeze(name: Name, ctx: Ctx, who: Who) -> Challenge:
    """It takes nothing any more; boards stay. Again changes nothing."""
    return ctx.publishing.freeze(who, name)


@router.post("/{name}/join", summary="Take part in a challenge")
def join(name: Name, request: TeamRequest, ctx: Ctx, who: Who) -> TeamView:
    """Makes a team, or joins the one whose `code` is sent. Again changes nothing."""
    return ctx.participating.join(
        who, name, team=request.team, code=request.code, accepts=request.accept_rules, answers=request.answers
    )


@router.post("/{name}/invite", summary="Give one's team a new code")
def invite(name: Name, ctx: Ctx, who: Who) -> TeamView:
    """The one before is void."""
    return ctx.participating.invite(who, name)


@router.post("/{name}/leave", status_code=204, summary="Leave one's team")
def leave(name: Name, ctx: Ctx, who: Who) -> None:
    """Its submissions stay its own, and count against the limits of who was in it when they were sent."""
    ctx.participating.leave(who, name)


@router.post("/{name}/merge", summary="Ask a team to merge with one's own, or agree")
def merge(name: Name, request: MergeRequest, ctx: Ctx, who: Who) -> TeamView:
    """`code`: of the team that is asked. `team`: the name of one that has asked, which is a part of one's own then."""
    return ctx.participating.merge(who, name, code=request.code, team=request.team)


@router.post("/{name}/choose", summary="Choose which submissions go on to the next final")
def choose(name: Name, request: ChoiceRequest, ctx: Ctx, who: Who) -> TeamView:
    """Until it begins, in the place of what was chosen before."""
    return ctx.participating.choose(who, name, request.submissions)


@router.post("/{name}/start", summary="Put what a challenge begins with among the files of one's sessions")
def begin(name: Name, ctx: Ctx, who: Who) -> StarterView:
    """Files that are there stay as they are. `directory` is relative to these files."""
    return StarterView(directory=ctx.participating.begin(who, name))


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
    with ctx.participating.starter(who, name) as archive:
        return Response(archive.read(), media_type="application/x-tar")


@router.get("/{name}/submissions", summary="List submissions of one's own team, newest first")
def list_submissions(
    name: Name,
    ctx: Ctx,
    who: Who,
    before: Annotated[
        int | None, Query(ge=1, le=LARGEST, description="Only submissions with smaller numbers: `next` of a page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> SubmissionList:
    """One page of them. Organisers see those of all teams."""
    return ctx.challenges.sent(who, name, before=before, limit=limit)


@router.post("/{name}/submissions", status_code=201, summary="Send code to a challenge")
def submit(name: Name, request: CodeRequest, ctx: Ctx, who: Who) -> SubmissionView:
    """Code that was uploaded, to the phase of now. 409 where no phase takes any, or nothing is left."""
    return ctx.participating.submit(who, name, request.snapshot)


@router.get("/{name}/submissions/{number}", summary="Look at a submission")
def get_submission(name: Name, number: Number, ctx: Ctx, who: Who) -> SubmissionView:
    """Its state, why it waits or failed, and its scores."""
    return ctx.challenges.submission(who, name, number)


@router.get(
    "/{name}/submissions/{number}/log",
    summary="The log of a submission's last job (organisers; its team where the challenge says so)",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Its end."}},
)
def get_log(name: Name, number: Number, ctx: Ctx, who: Who) -> Response:
    """Its last 256 KiB. It may show what the programs saw: a team gets the end of what its own code printed, or 403."""
    return Response(ctx.challenges.log(who, name, number), media_type="text/plain; charset=utf-8")


@router.get("/{name}/notices", summary="What a challenge tells, newest first")
def list_notices(name: Name, ctx: Ctx, who: Who) -> NoticeList:
    """Announcements, changes, what one's team was given, one's own questions, and those of others that were published."""
    return ctx.organising.list(who, name)


@router.post("/{name}/notices", status_code=201, summary="Tell all who look at a challenge something (organisers)")
def announce(name: Name, request: TextRequest, ctx: Ctx, who: Who) -> ChallengeNotice:
    """Plain text on one line."""
    return ctx.organising.announce(who, name, request.text)


@router.post("/{name}/quotas", status_code=201, summary="Give a team submissions more, or take some away (organisers)")
def grant(name: Name, request: QuotaRequest, ctx: Ctx, who: Who) -> ChallengeNotice:
    """In the phase of now; its members read how many, from whom and why. 409 where teams send to none."""
    asked = request
    return ctx.organising.grant(who, name, asked.team, today=asked.today, total=asked.total, reason=asked.reason)


@router.post("/{name}/questions", status_code=201, summary="Ask the organisers of a challenge something")
def ask(name: Name, request: TextRequest, ctx: Ctx, who: Who) -> ChallengeNotice:
    """For those who take part. 409 where ten of one's questions wait."""
    return ctx.organising.ask(who, name, request.text)


@router.post("/{name}/questions/{number}/answer", summary="Answer a question (organisers)")
def answer(name: Name, number: Number, request: AnswerRequest, ctx: Ctx, who: Who) -> ChallengeNotice:
    """To its asker, or to everybody. Again changes the answer."""
    return ctx.organising.answer(who, name, number, request.text, publish=request.publish)


@router.get("/{name}/report", summary="What became of a challenge (organisers)")
def get_report(name: Name, ctx: Ctx, who: Who) -> ChallengeReport:
    """Days, teams with what is left to them, failures by kind, answers, boards and GPU-hours."""
    return ctx.organising.report(who, name)


@router.get("/{name}/likeness", summary="Pairs of teams whose best submissions are alike (organisers)")
def get_likeness(
    name: Name,
    ctx: Ctx,
    who: Who,
    phase: Annotated[str | None, Query(max_length=64, description="Default: the one of now.")] = None,
) -> Likeness:
    """It proves nothing: right predictions are equal, and so is code that all begin with elsewhere."""
    return ctx.organising.likeness(who, name, phase)


@router.get("/{name}/submissions/{number}/record", summary="What explains a score")
def get_record(name: Name, number: Number, ctx: Ctx, who: Who) -> Mapping[str, Any]:
    """Code, version, environment, scores; for organisers also digests of programs and data, and the jobs' records with seeds."""
    return ctx.challenges.record(who, name, number)


@router.post("/{name}/try", status_code=201, summary="Try code on training data")
def try_code(name: Name, request: CodeRequest, ctx: Ctx, who: Who) -> DryRunView:
    """Code that was uploaded, as two tasks of one's own. It counts for no limit. 404 where the challenge has no dry run."""
    ingestion, scoring = ctx.participating.try_out(who, name, request.snapshot)
    return DryRunView(ingestion=ingestion, scoring=scoring)


@router.get("/{name}/samples", summary="Which training data are shown one by one")
def list_samples(name: Name, ctx: Ctx, who: Who) -> SampleList:
    """Names of files, what was shown, and what is left. 404 where those who take part have the training data themselves."""
    return ctx.samples.list(who, name)


@router.post(
    "/{name}/samples",
    summary="See a sample of the training data",
    response_class=Response,
    responses={
        200: {
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            "description": "The file.",
        }
    },
)
def see_sample(name: Name, request: SampleRequest, ctx: Ctx, who: Who) -> Response:
    """It is written down, and counts for one's team on this day, unless the team has seen it. 409 where none is left."""
    return Response(ctx.samples.show(who, name, request.sample), media_type="application/octet-stream")
