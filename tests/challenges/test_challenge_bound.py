"""What a team can learn from what it is shown: the bound, the Ladder, ends in steps, and logs that are cut."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity import YAML, write_challenge

from carrel.core.challenges.bound import bound
from carrel.core.challenges.ladder import ladder
from carrel.core.challenges.limits import left
from carrel.core.challenges.reading import read_challenge
from carrel.core.challenges.scores import read_scores
from carrel.core.challenges.seen import ENDS, ONE_END, SCORING_ENDS, readable, seen, withheld
from carrel.core.domain.challenge import (
    Bound,
    ChallengeSpec,
    ChallengeSubmission,
    Column,
    Fault,
    Ladder,
    Limits,
    OwnLog,
    Phase,
    Split,
    SubmissionState,
)
from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.lab.gateway.challenge_runs import REFUSED, blame

pytestmark = pytest.mark.quick

DAY = 86_400.0
ACCURACY = Column(column="accuracy", title="Accuracy", precision=2, range=(0, 1))
LIMITS = Limits(per_day=5, total=100, at_once=1, failures_per_day=20)
SPEC = ChallengeSpec(
    name="parity",
    title="",
    pages={},
    splits={"public": Split(input="i", reference="r")},
    ingestion="p",
    scoring="s",
    phases=(Phase(name="one", begin=0, end=10 * DAY, split="public", limits=LIMITS),),
    board=(ACCURACY,),
)


def of(spec: ChallengeSpec, **more: int) -> Bound:
    return bound(spec, spec.phases[0], longest=600, reference_bytes=1000, **more)


def ended_job(**fields: Any) -> Job:
    usual: dict[str, Any] = {"kind": JobKind.TASK, "owner": "challenge:parity", "account": "", "name": "", "qos": ""}
    return Job(id=1, **usual, resources=Resources(), submitted_at=0.0, **{"reason": None, **fields})


def limited(**limits: int) -> ChallengeSpec:
    return replace(SPEC, phases=(replace(SPEC.phases[0], limits=replace(LIMITS, **limits)),))


def test_what_a_team_can_send_is_counted_in_days_of_the_zone() -> None:
    """5 a day for 10 days are 50, though 100 are allowed; a phase that begins at 18:00 touches one day more."""
    assert (of(SPEC).scored, of(SPEC).failed) == (50, 200)
    late = replace(SPEC, phases=(replace(SPEC.phases[0], begin=DAY * 0.75, end=DAY * 10.75),))
    assert (of(late).scored, of(late).failed) == (55, 220)
    assert of(replace(late, zone="Asia/Tokyo")).failed == 220  # 03:00 there


def test_it_holds_for_all_that_a_team_can_be_shown() -> None:
    """Counted one by one where few may be sent: sequences of scores and of ends, one day long."""
    for scored, failed, one_end in itertools.product(range(1, 4), range(1, 3), (False, True)):
        spec = replace(limited(total=scored, failures_per_day=failed), one_end=one_end)
        spec = replace(spec, board=(replace(ACCURACY, precision=0),), phases=(replace(spec.phases[0], end=DAY),))
        ends = range(1 if one_end else ENDS)
        words = 0
        for length in range(scored + failed + 1):
            for kinds in itertools.product("sf", repeat=length):
                if kinds.count("s") <= scored and kinds.count("f") <= failed:
                    words += math.prod(2 if kind == "s" else len(ends) for kind in kinds)
        assert math.log2(words) <= of(spec).bits <= math.log2(words) + 4


@pytest.mark.parametrize("sent", [1, 2, 3, 4])
def test_it_holds_for_all_that_a_ladder_can_show(sent: int) -> None:
    """Counted one by one: all sequences of the eleven scores of one digit, climbed in steps of 0.2."""
    column, step = replace(ACCURACY, precision=1), 0.2
    shown = {
        tuple(one["accuracy"] for one in ladder([column], step, map(scored, range(sent), scores)).values())
        for scores in itertools.product([number / 10 for number in range(11)], repeat=sent)
    }
    spec = replace(limited(total=sent, failures_per_day=1), board=(column,), ladder=Ladder(step=step))
    free = replace(spec, ladder=None)
    assert math.log2(len(shown)) <= of(spec).reference_bits
    assert of(spec).reference_bits <= of(free).reference_bits


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        (SPEC, limited(per_day=6)),
        (SPEC, limited(failures_per_day=21)),
        (SPEC, replace(SPEC, board=(replace(ACCURACY, precision=3),))),
        (SPEC, replace(SPEC, board=(replace(ACCURACY, range=None),))),
        (SPEC, replace(SPEC, board=(ACCURACY, replace(ACCURACY, column="b")))),
        (SPEC, replace(SPEC, step=60)),
        (replace(SPEC, step=60), replace(SPEC, step=30)),
        (replace(SPEC, one_end=True), SPEC),
        (replace(SPEC, ladder=Ladder(step=0.05)), replace(SPEC, ladder=Ladder(step=0.01))),
        (replace(SPEC, ladder=Ladder(step=0.01)), SPEC),
    ],
)
def test_more_that_is_shown_is_more_that_is_learnt(more: ChallengeSpec, changed: ChallengeSpec) -> None:
    assert of(more).reference_bits < of(changed).reference_bits


def test_logs_tell_of_inputs_alone() -> None:
    """Where the team's code runs there are no references. A ladder or a log holds only where the challenge says."""
    told = of(replace(SPEC, log=OwnLog(bytes=100), feedback=20))
    assert told.reference_bits == of(SPEC).reference_bits
    assert told.bits >= told.reference_bits + 250 * 800 + 200 * 160
    assert of(replace(SPEC, log=OwnLog(bytes=100, splits=("private",)))).bits == of(SPEC).bits
    assert of(replace(SPEC, ladder=Ladder(step=0.1, phases=("two",)))).bits == of(SPEC).bits


def test_the_ends_of_intervals_count() -> None:
    assert of(SPEC, numbers=3).reference_bits - of(SPEC).reference_bits == pytest.approx(50 * 2 * math.log2(101), abs=2)


def test_it_is_told_with_what_to_do() -> None:
    words = " ".join(of(SPEC).words)
    assert "(50 that are scored, 200 that fail) learns at most " in words
    assert "their files have 1,000. " in words
    assert "one_end: true" in words  # most is told by the ends of failures here
    assert "steps: {time: 60}" in words
    assert "ladder" in " ".join(of(replace(limited(failures_per_day=1), one_end=True)).words)
    assert "has no range" in " ".join(of(replace(SPEC, board=(replace(ACCURACY, range=None),))).words)


def test_a_team_is_told_no_more_ends_than_are_counted() -> None:
    """All ends of jobs of both programs, and the four ends that are none of a job's."""
    told: dict[bool, set[tuple[Fault, str]]] = {False: set(), True: set()}
    reasons = ["", "EnvironmentFailed", "InputFailed", "NonZeroExitCode"]
    for state, code, exit_code, scoring in itertools.product(JobState, reasons, (None, 0, 1, REFUSED, 137), (False, True)):
        if state.ended and state is not JobState.COMPLETED:
            reason = Reason(code=code, message="") if code else None
            fault, message = blame(ended_job(state=state, exit_code=exit_code, reason=reason), scoring=scoring)
            if fault is not Fault.LAB:
                told[scoring].add((fault, message))
    assert len(told[False] | told[True]) + 4 == ENDS
    assert len(told[True] - told[False]) + 1 == SCORING_ENDS  # and that it wrote no scores


# ---- the Ladder


def scored(
    number: int, accuracy: float, *, team: str = "t", phase: str = "one", ended: float | None = None
) -> ChallengeSubmission:
    made = ChallengeSubmission(id=number + 1, challenge="parity", phase=phase, team=team, snapshot="")
    ended = float(number) if ended is None else ended
    return replace(made, state=SubmissionState.COMPLETED, scores={"accuracy": accuracy}, made_at=ended, ended_at=ended)


def blum_and_hardt(losses: Sequence[Fraction], step: Fraction) -> list[Fraction]:
    """Algorithm 1 as the paper has it."""
    told: list[Fraction] = []
    released: Fraction | None = None
    for loss in losses:
        if released is None or loss < released - step:
            released = math.floor(loss / step + Fraction(1, 2)) * step
        told.append(released)
    return told


@given(st.lists(st.integers(0, 1000), max_size=30), st.sampled_from([1, 5, 10, 30, 400]), st.booleans())
def test_the_ladder_is_that_of_the_paper(scores: list[int], step: int, larger: bool) -> None:
    column = Column(column="accuracy", title="", precision=3, larger=larger)
    found = ladder([column], step / 1000, [scored(number, one / 1000) for number, one in enumerate(scores)])
    sign = -1 if larger else 1
    plain = blum_and_hardt([Fraction(sign * one, 1000) for one in scores], Fraction(step, 1000))
    assert [one["accuracy"] for one in found.values()] == [float(sign * one) for one in plain]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5)), max_size=12), st.randoms())
def test_what_was_shown_stays(sent: list[tuple[int, int]], chance: random.Random) -> None:
    """Whatever comes later, in whatever order the records are read: the lab can be killed at any moment."""
    spec = replace(SPEC, ladder=Ladder(step=0.05), step=2)
    ones = [scored(number, score / 100, ended=ended) for number, (score, ended) in enumerate(sent)]
    for now in range(8):
        there = [one for one in ones if one.ended_at is not None and one.ended_at <= now]
        before = {one.id: one.scores for one in seen(spec, there, now)}
        later = {one.id: one.scores for one in seen(spec, chance.sample(ones, len(ones)), 10.0)}
        assert all(later[number] == scores for number, scores in before.items() if scores)


def test_each_team_and_phase_climbs_a_ladder_of_its_own() -> None:
    spec = replace(SPEC, ladder=Ladder(step=0.1, phases=("one",)))
    ones = [
        scored(0, 0.52),
        scored(1, 0.56),
        scored(2, 0.68),
        scored(3, 0.56, team="other"),
        scored(4, 0.57, phase="final"),
        replace(scored(5, 0.58), team="", baseline="zeros"),
    ]
    assert [one.scores["accuracy"] for one in seen(spec, ones, 99)] == [0.5, 0.5, 0.7, 0.6, 0.57, 0.58]


def climb(step: float, *, sent: int = 300, labels: int = 1000, precision: int = 3) -> tuple[float, float]:
    """The boosting attack of Blum and Hardt (figure 1): random guesses; those that score above one half are taken to a vote.

    Returns what the vote scores on the labels of the board, and what the board shows.
    """
    chance = random.Random(7)
    truth = [chance.getrandbits(1) for _ in range(labels)]
    column = Column(column="accuracy", title="", precision=precision)

    def score(said: Sequence[int]) -> float:
        return round(sum(a == b for a, b in zip(said, truth, strict=True)) / labels, precision)

    guesses = [[chance.getrandbits(1) for _ in range(labels)] for _ in range(sent)]
    ones = [scored(number, score(guess)) for number, guess in enumerate(guesses)]
    spec = replace(SPEC, board=(column,), ladder=Ladder(step=step) if step else None)
    told = [one.scores["accuracy"] for one in seen(spec, ones, 1e9)]
    best, kept = 0.5, []
    for guess, shown in zip(guesses, told, strict=True):
        # With a ladder a team hears of a guess only that it raised what is shown.
        if shown > (best if step else 0.5):
            kept.append(guess)
        best = max(best, shown) if step else best
    vote = [int(2 * sum(column) > len(kept)) for column in zip(*kept, strict=True)] if kept else guesses[0]
    final = [*ones, scored(sent, score(vote))]
    return score(vote), seen(spec, final, 1e9)[-1].scores["accuracy"]


def test_guesses_climb_without_a_ladder_and_not_with_one() -> None:
    """300 random submissions: their vote gets well above one half, and knows nothing; with a ladder it stays there."""
    vote, shown = climb(0)
    assert vote == shown > 0.6
    vote, shown = climb(0.05)
    assert vote < 0.55
    assert shown < 0.56


# ---- steps, and words


@given(st.floats(1, 1000), st.floats(1, 1000), st.floats(0, 3000), st.sampled_from(list(SubmissionState)))
def test_two_ends_in_one_step_are_the_same_to_a_team(first: float, second: float, now: float, state: SubmissionState) -> None:
    """Also while the submission is scored, and in what is left of its limits."""
    spec = replace(SPEC, step=100)
    made = replace(scored(0, 0.5), made_at=0.5, ingestion_job=4)

    def at(ended: float) -> ChallengeSubmission:
        # Of two that end in one step, one may be scored by now, and the other's code be still at work.
        if ended > now:
            job = 0 if state is SubmissionState.PENDING else 5
            return replace(made, state=SubmissionState.RUNNING, scores={}, scoring_job=job, ended_at=None)
        return replace(made, scoring_job=5, ended_at=ended)

    if math.ceil(first / 100) == math.ceil(second / 100):
        one, other = (seen(spec, [at(ended)], now) for ended in (first, second))
        told = [(each[0].state, each[0].stage, each[0].scores, each[0].message, each[0].ended_at) for each in (one, other)]
        assert told[0] == told[1]
        assert left(spec.phases[0], one, now=now, zone="UTC") == left(spec.phases[0], other, now=now, zone="UTC")


def test_one_end_says_only_that_it_failed() -> None:
    """But of what the lab could not carry out: it costs nothing."""
    spec = replace(SPEC, one_end=True)
    failed = replace(scored(0, 0), state=SubmissionState.FAILED, scores={}, message="words", fault=Fault.TEAM)
    organisers, lab = replace(failed, fault=Fault.ORGANISER, message="others"), replace(failed, fault=Fault.LAB)
    told = seen(spec, [failed, organisers, lab], 99)
    assert [(one.message, one.fault) for one in told] == [(ONE_END, None), (ONE_END, None), ("words", Fault.LAB)]
    full = [left(SPEC.phases[0], [one], now=5, zone="UTC").failures for one in (failed, told[0], lab)]
    assert full == [19, 19, 20]
    going_on = replace(failed, state=SubmissionState.RUNNING, fault=None, message="", ended_at=None, ingestion_job=1)
    one, other = seen(spec, [going_on, replace(going_on, scoring_job=2)], 99)
    assert (one, one.stage) == (other, "ingestion")  # which program has it would tell in which it fails


@given(st.binary(max_size=300), st.integers(0, 100))
def test_a_log_is_printable_and_not_longer(text: bytes, most: int) -> None:
    found = readable(text, most)
    assert len(found.encode()) <= most
    assert all(one.isprintable() or one == "\n" for one in found)


def test_the_end_of_a_log_is_kept() -> None:
    assert readable(b"first\n\x1b[31mlast\x00 line\xff\n", 14) == "[31mlast line�"[-12:]
    assert readable("x\u202ey".encode(), 10) == "xy"


# ---- challenge.yaml

MORE = "ladder: {step: 0.05, phases: [development]}\nsteps: {time: 60, one_end: true}\nlog: {bytes: 4000, splits: [public]}\n"


@pytest.fixture
def paths(tmp_path: object) -> list[str]:
    place = write_challenge(tmp_path)  # type: ignore[arg-type]
    return [str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()]


def test_it_says_what_is_shown(paths: list[str]) -> None:
    spec = read_challenge(YAML.replace("precision: 2", "precision: 2, range: [-1, 1.5]") + MORE, paths)
    assert (spec.ladder, spec.log) == (Ladder(step=0.05, phases=("development",)), OwnLog(bytes=4000, splits=("public",)))
    assert (spec.step, spec.one_end, spec.board[0].range) == (60, True, (-1.0, 1.5))
    assert len(withheld(spec)) == 4
    assert not withheld(read_challenge(YAML, paths))
    hidden = read_challenge(YAML.replace("split: public", "split: public, board: hidden"), paths)
    assert withheld(hidden) == ("Scores and places in development are shown from 00:00 on 1 January 2040 (UTC) on.",)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("step: 0.05, ", "", 'no "step"'),
        ("step: 0.05", "step: 0.005", "no multiple of 0.01"),
        ("step: 0.05", "step: 0", "no multiple"),
        ("step: 0.05", "step: nan", "not a number"),
        ("phases: [development]", "phases: [developing]", '"development"'),
        ("bytes: 4000, ", "", 'no "bytes"'),
        ("bytes: 4000", "bytes: 400000", "1 to 65536"),
        ("splits: [public]", "splits: [publik]", '"public"'),
        ("time: 60", "time: 0", "1 to 86400"),
        ("one_end: true", "one_end: yes", "true or false"),
        ("log: {", "feedback: 20\nlog: {", "Leave one of them out"),
        ("precision: 2", "precision: 2, range: [1, 0]", "the lower one first"),
        ("precision: 2", "precision: 2, range: [0, inf]", "not a number"),
        ("precision: 2", "precision: 2, range: [0]", "two numbers"),
    ],
)
def test_what_is_wrong_with_it_is_told(paths: list[str], old: str, new: str, words: str) -> None:
    text = YAML + MORE
    assert old in text
    with pytest.raises(Invalid) as caught:
        read_challenge(text.replace(old, new), paths)
    assert words in f"{caught.value.message} {caught.value.remedy}"


def test_a_score_out_of_its_range_is_none() -> None:
    """Else the bound would not hold."""
    assert read_scores(b'{"accuracy": 1}', [ACCURACY]) == {"accuracy": 1.0}
    with pytest.raises(Invalid, match="out of its range"):
        read_scores(b'{"accuracy": 1.001}', [ACCURACY])
