"""What teams see of submissions, made in one place: pages, lists, boards and limits all go by it.

A platform that hides a score in its board and shows it in a list (codalab-competitions #2150) hides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from carrel.core.challenges.ladder import ladder
from carrel.core.challenges.limits import told as moment
from carrel.core.domain.challenge import ChallengeSpec, ChallengeSubmission, Fault, SubmissionState
from carrel.core.domain.units import format_duration

#: Ends that a team can tell apart where it is told them, beside that it was scored. `challenge_runs` words them.
ENDS = 10
#: Those of them that the scoring program has a part in, which sees the references.
SCORING_ENDS = 3
#: What it is told of all of them where it cannot.
ONE_END = "It failed. The organisers can see why."


def seen(spec: ChallengeSpec, submissions: Sequence[ChallengeSubmission], now: float) -> Sequence[ChallengeSubmission]:
    """Return all submissions to a challenge, or all of a team, as teams see them at a moment, in the same order.

    Baselines are shown as they are: they say nothing of anybody's.
    """
    shown = [one if one.baseline else _ended(spec, _in_steps(one, spec.step, now)) for one in submissions]
    released = _released(spec, shown)
    return [replace(one, scores=released[one.id], intervals={}) if one.id in released else one for one in shown]


def withheld(spec: ChallengeSpec) -> tuple[str, ...]:
    """Say what is held back from teams, and what they are shown of their own logs."""
    told = [
        f"Scores and places in {one.name} are shown from {moment(spec.opens(one.name), spec.zone)} on."
        for one in spec.phases
        if one.board != "shown"
    ]
    if spec.intervals:
        told.append(f"Beside each score its {spec.intervals * 100:g} % interval is shown, where no ladder holds it back.")
    if spec.ladder is not None:
        where = f"In {', '.join(spec.ladder.phases)} the" if spec.ladder.phases else "The"
        told.append(
            f"{where} scores that a team is shown move only when {spec.board[0].title} is more than {spec.ladder.step:g} better."
        )
    if spec.step:
        told.append(f"The end of a submission is shown in steps of {format_duration(spec.step)}, and how far it is only then.")
    if spec.one_end:
        told.append("In which way a submission failed is not told, nor how far it is before.")
    if spec.log is not None:
        where = f" on {', '.join(spec.log.splits)}" if spec.log.splits else ""
        told.append(f"A team may read the last {spec.log.bytes} bytes of what its own code printed{where}.")
    return tuple(told)


def readable(text: bytes, most: int) -> str:
    """The end of what a program printed: what can be printed of it, in at most so many bytes."""
    said = "".join(one for one in text.decode(errors="replace") if one.isprintable() or one == "\n").strip()
    return said.encode(errors="replace")[-most:].decode(errors="ignore") if most else ""


def _in_steps(one: ChallengeSubmission, step: int, now: float) -> ChallengeSubmission:
    """Until the step is over in which it ended it runs; how far it is, is not said: its parts take as long as they want."""
    if not step or (one.state is SubmissionState.PENDING and one.ended_at is None):
        return one
    ended = None if one.ended_at is None else math.ceil(one.ended_at / step) * step
    if ended is not None and ended <= now:
        return replace(one, ended_at=float(ended))
    return replace(
        one, state=SubmissionState.RUNNING, scores={}, intervals={}, message="", fault=None, ended_at=None, scoring_job=0
    )


def _ended(spec: ChallengeSpec, one: ChallengeSubmission) -> ChallengeSubmission:
    if not spec.one_end:
        return one
    if one.state is SubmissionState.FAILED and one.fault is not Fault.LAB:
        return replace(one, message=ONE_END, fault=None)
    # Which program has it would tell which one it fails in.
    return one if one.state.ended else replace(one, scoring_job=0)


def _released(spec: ChallengeSpec, shown: Sequence[ChallengeSubmission]) -> dict[int, dict[str, float]]:
    """The scores that the ladder lets through, by submission. It goes by the order in which they ended: what was shown stays."""
    if spec.ladder is None:
        return {}
    teams: dict[tuple[str, str], list[ChallengeSubmission]] = {}
    for one in sorted(shown, key=lambda one: (one.ended_at or 0.0, one.id)):
        if one.team and spec.ladder.holds(one.phase) and all(column.column in one.scores for column in spec.board):
            teams.setdefault((one.team, one.phase), []).append(one)
    return {
        number: dict(scores) for sent in teams.values() for number, scores in ladder(spec.board, spec.ladder.step, sent).items()
    }
