"""How much a team can learn in a phase from what it is shown of its submissions: bits, and what could make them fewer.

A team that is shown one of N things has learned at most log2 N bits, however it chose what it sent; so the bound is the logarithm
of the number of different things that it can be shown in all. It holds for any attack, as those on accuracy (Blum and Hardt,
ICML 2015) and on the logarithmic loss (Whitehill, "Climbing the Kaggle leaderboard by exploiting the log-loss oracle",
arXiv:1707.01825); and a test set of which few bits are known is hardly fitted to (Dwork et al., "The reusable holdout", Science
2015). It counts what the lab shows of the team's own submissions. docs/challenges.md says what it does not count.
"""

from __future__ import annotations

import math
from datetime import datetime
from zoneinfo import ZoneInfo

from carrel.core.challenges.ladder import steps_of
from carrel.core.challenges.seen import ENDS, SCORING_ENDS
from carrel.core.domain.challenge import Bound, ChallengeSpec, Column, Phase
from carrel.core.domain.units import format_duration

#: Bits of a float, for a column that can have any value.
_FLOAT = 64


def bound(
    spec: ChallengeSpec, phase: Phase, *, longest: float, reference_bytes: int, numbers: int = 1, train_bytes: int = 0
) -> Bound:
    """Return the bound of a phase.

    `longest` are the seconds that the programs can take for a submission, `numbers` how many values are shown of each column:
    its score, and the ends of its interval where it has one; `train_bytes` are those of training data that teams cannot copy.
    """
    limits, days = phase.limits, _days(phase, spec.zone)
    scored, failed = min(limits.total, limits.per_day * days), limits.failures_per_day * days
    sends = f"that sends all it may ({scored:,} that are scored, {failed:,} that fail)"
    less, fewer = "total", "failures_per_day"
    if phase.final is not None:  # each of those that go on is scored, or fails
        scored = failed = phase.final.number
        sends = f"of which {scored:,} go on from {phase.final.source}"
        less = fewer = "the number of the final"
    both, kinds = scored + failed, 0 if spec.one_end else failed
    ended = both * math.log2(longest // spec.step + 2) if spec.step else 0.0
    said = failed * (8 * spec.feedback + 1) if spec.feedback else 0.0
    printed = both * (8 * spec.log.bytes + 1) if spec.log is not None and spec.log.holds(phase.split) else 0.0
    # Which of them failed: so many words have at most `scored` and at most `failed` letters. And how the scoring ended.
    failures = _combinations(both + 2, scored + 1) + kinds * math.log2(SCORING_ENDS)
    fewer = f"lower {fewer}" + (", or write steps: {one_end: true}" if kinds else "")
    # Bits, what tells them, and what makes it less.
    references = [
        (
            _scores(spec, phase, scored, numbers),
            "their scores",
            f"lower {less} or the precision, or write ladder: {{step: 0.01}}",
        ),
        (failures, "which of them fail" + (", and how" if kinds else ""), fewer),
        (ended, "when they end", "write a longer time into steps, or a shorter one into the programs"),
    ]
    inputs = [
        (kinds * math.log2(ENDS / SCORING_ENDS), "the way in which they fail", fewer),
        (said, "what the ingestion says last", "lower feedback"),
        (printed, "the logs of their code", "lower the bytes of log"),
    ]
    hidden = "inputs and training data" if spec.sampling else "inputs"
    every = "inputs, training data and references" if spec.sampling else "inputs and references"
    reference_bits, bits = (math.ceil(sum(part[0] for part in parts)) for parts in (references, references + inputs))
    return Bound(
        phase=phase.name,
        scored=scored,
        failed=failed,
        reference_bits=reference_bits,
        bits=bits,
        reference_bytes=reference_bytes,
        words=(
            f"A team {sends} learns at most"
            f" {reference_bits:,} bits about the references, as much as {math.ceil(reference_bits / 8):,} bytes hold;"
            f" their files have {reference_bytes:,}. About {every} together: at most {bits:,} bits.",
            *(
                f"About the {what}, most is told by {source} ({math.ceil(most):,} bits). To make that less, {remedy}."
                for what, (most, source, remedy) in (("references", max(references)), (hidden, max(inputs)))
                if most
            ),
            *_samples(spec, days, train_bytes),
            *_not_counted(spec),
        ),
    )


def _samples(spec: ChallengeSpec, days: int, train_bytes: int) -> list[str]:
    if spec.sampling is None:
        return []
    shown = spec.sampling.per_day * days
    return [
        f"Beside that it may see {shown:,} single files of the training data, {spec.sampling.words}: at most "
        f"{min(shown * spec.sampling.largest, train_bytes):,} of their {train_bytes:,} bytes."
        " To make that less, lower samples_per_day."
    ]


def _not_counted(spec: ChallengeSpec) -> list[str]:
    told = [
        f'The column "{column.column}" has no range, and counts as any number, {_FLOAT} bits: write range: [0, 1], if that is so.'
        for column in spec.board
        if column.range is None
    ]
    if spec.step:
        return [*told, f"Ends are shown in steps of {format_duration(spec.step)}."]
    return [*told, "When a submission ends is shown at once, and is not counted: write steps: {time: 60} to have that counted."]


def _scores(spec: ChallengeSpec, phase: Phase, scored: int, numbers: int) -> float:
    first, *others = spec.board
    if spec.ladder is None or not spec.ladder.holds(phase.name):
        return scored * numbers * sum(math.log2(_values(column)) for column in spec.board)
    # What is released only gets better, and each time by a step; the rest comes with it.
    rungs = math.ceil(_values(first) / steps_of(first, spec.ladder.step)) + 1
    rest = (numbers - 1) * math.log2(_values(first)) + numbers * sum(math.log2(_values(column)) for column in others)
    return _combinations(scored + rungs - 1, scored) + min(scored, rungs) * rest


def _values(column: Column) -> float:
    """The number of values that a column can show."""
    if column.range is None:
        return 2.0**_FLOAT
    low, high = (round(end * 10.0**column.precision) for end in column.range)
    return min(high - low + 1.0, 2.0**_FLOAT)


def _combinations(all_: float, chosen: int) -> float:
    """The logarithm of the number of ways to choose so many of all."""
    if all_ > 2.0**40:  # beyond what lgamma tells apart
        return chosen * math.log2(all_) - math.lgamma(chosen + 1) / math.log(2)
    return (math.lgamma(all_ + 1) - math.lgamma(chosen + 1) - math.lgamma(all_ - chosen + 1)) / math.log(2)


def _days(phase: Phase, zone: str) -> int:
    """The days of the challenge's zone that a phase touches."""
    here = ZoneInfo(zone)
    first, last = (datetime.fromtimestamp(moment, here).date() for moment in (phase.begin, phase.end - 1))
    return (last - first).days + 1
