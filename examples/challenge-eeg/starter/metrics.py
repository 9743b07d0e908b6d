"""Measures of detected events, from their definitions, with the standard library alone.

* TAES, time-aligned event scoring: V. Shah, M. Golmohammadi, I. Obeid, J. Picone, "Objective evaluation metrics for automatic
  classification of EEG events" (arXiv:1712.10107); how several events that overlap are counted: NEDC's scoring software, as
  https://github.com/Clarity-Digital-Twin/nedc-bench/blob/main/docs/algorithms/taes.md describes it.
* OVLP, any overlap, for sensitivity and false alarms per 24 hours: the same paper, and overlap.md beside that page.

Times are seconds from the beginning of a recording.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DAY = 24 * 60 * 60.0


@dataclass(frozen=True)
class Event:
    """A seizure, as the labels or a prediction have it."""

    start: float
    end: float

    @property
    def duration(self) -> float:
        return self.end - self.start

    def overlap(self, other: "Event") -> float:
        """Return for how many seconds both last."""
        return max(0.0, min(self.end, other.end) - max(self.start, other.start))


@dataclass(frozen=True)
class Counts:
    """Hits, misses and false alarms. TAES counts parts of events."""

    hits: float = 0.0
    misses: float = 0.0
    false_alarms: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.hits + other.hits, self.misses + other.misses, self.false_alarms + other.false_alarms)

    @property
    def sensitivity(self) -> float:
        """The part of the labelled events that is found."""
        labelled = self.hits + self.misses
        return self.hits / labelled if labelled else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of sensitivity and precision: 1 is best, 0 is worst."""
        total = 2 * self.hits + self.misses + self.false_alarms
        return 2 * self.hits / total if total else 0.0


def problem_of(events: Sequence[tuple[float, float, float]], duration: float) -> str | None:
    """Return what is wrong with the predictions (start, end, confidence) for one recording, or None."""
    last = None
    for start, end, confidence in sorted(events):
        shown = f"({start}, {end}, {confidence})"
        if not all(math.isfinite(value) for value in (start, end, confidence)):
            return f"the event {shown} has a value that is no finite number"
        if not 0 <= start < end <= duration:
            return f"the event {shown} does not lie in the recording: needs 0 <= start < end <= {duration}"
        if not 0 <= confidence <= 1:
            return f"the event {shown} has the confidence {confidence}: needs a number from 0 to 1"
        if last is not None and start < last:
            return f"the event {shown} begins before {last}, where the one before it ends: merge events that overlap"
        last = end
    return None


def taes(labelled: Iterable[Event], predicted: Iterable[Event]) -> Counts:
    """Count with TAES in one recording.

    A prediction belongs to the first labelled event that it overlaps. Of each labelled event, the part that its predictions cover
    is a hit, and the rest is a miss. The part of a prediction outside of its event is a false alarm, measured by the event's
    duration and at most 1; a prediction that overlaps no event is a false alarm of 1. So one prediction over several events hits
    only the first of them.
    """
    labels = sorted(labelled, key=lambda event: event.start)
    covered = [0.0] * len(labels)
    false_alarms = 0.0
    for event in predicted:
        own = next((number for number, label in enumerate(labels) if event.overlap(label) > 0), None)
        if own is None:
            false_alarms += 1
            continue
        inside = event.overlap(labels[own])
        covered[own] += inside
        false_alarms += min(1.0, (event.duration - inside) / labels[own].duration)
    hits = sum(min(1.0, seconds / label.duration) for seconds, label in zip(covered, labels, strict=True))
    return Counts(hits, len(labels) - hits, false_alarms)


def any_overlap(labelled: Sequence[Event], predicted: Sequence[Event]) -> Counts:
    """Count with OVLP in one recording.

    A labelled event that any prediction overlaps is a hit, and a prediction that overlaps no labelled event is a false alarm.
    """
    hits = sum(any(label.overlap(event) > 0 for event in predicted) for label in labelled)
    false_alarms = sum(not any(event.overlap(label) > 0 for label in labelled) for event in predicted)
    return Counts(hits, len(labelled) - hits, false_alarms)


def scores(
    durations: dict[str, float], labelled: dict[str, Sequence[Event]], predicted: dict[str, Sequence[Event]]
) -> dict[str, float]:
    """Return the scores of predictions; all three arguments have the names of recordings as keys.

    `taes` is F1 of TAES's counts over all recordings; `sensitivity` and `false_alarms_per_24h` are counted with any overlap.
    """
    return score([count(durations[name], labelled.get(name, ()), predicted.get(name, ())) for name in durations])


#: What is counted in a recording: with TAES, with any overlap, and its seconds.
Recording = tuple[Counts, Counts, float]


def count(duration: float, labelled: Sequence[Event], predicted: Sequence[Event]) -> Recording:
    """Count in one recording."""
    return taes(labelled, predicted), any_overlap(labelled, predicted), duration


def score(recordings: Sequence[Recording]) -> dict[str, float]:
    """Return the scores of what was counted in recordings; one that is there twice counts twice."""
    aligned = sum((one for one, _, _ in recordings), Counts())
    overlapping = sum((one for _, one, _ in recordings), Counts())
    return {
        "taes": aligned.f1,
        "sensitivity": overlapping.sensitivity,
        "false_alarms_per_24h": overlapping.false_alarms * DAY / sum(seconds for _, _, seconds in recordings),
    }


def replicates(recordings: dict[str, Sequence[Recording]], *, number: int, seed: int) -> dict[str, list[float]]:
    """Return the scores on resamples of patients, who are the keys of `recordings`.

    Patients are drawn, and not recordings: those of one patient are alike (Efron and Tibshirani 1993, section 8.6). The same seed
    draws the same patients for each submission, so that submissions can be compared resample by resample.
    """
    # Sums by patient are all that a resample needs.
    sums = [
        (sum((one for one, _, _ in each), Counts()), sum((one for _, one, _ in each), Counts()), sum(s for _, _, s in each))
        for _, each in sorted(recordings.items())
    ]
    draw = random.Random(seed)
    found = [score(draw.choices(sums, k=len(sums))) for _ in range(number)]
    return {column: [one[column] for one in found] for column in found[0]}
