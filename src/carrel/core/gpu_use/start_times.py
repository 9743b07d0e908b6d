"""How long jobs take from submission to their first output and metric: median and 95th percentile of each class of service."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from carrel.core.domain.partition import read_cluster
from carrel.core.gpu_use.facts import StartFacts


class Times:
    """Many lengths of time, of which eight bytes each are kept."""

    def __init__(self) -> None:
        self._seconds = array("d")

    def __len__(self) -> int:
        return len(self._seconds)

    def add(self, seconds: float) -> None:
        """Count one more. Two clocks may say that something took less than nothing."""
        self._seconds.append(max(0.0, seconds))

    def percentiles(self, *percents: int) -> tuple[float | None, ...]:
        """By nearest rank: the smallest length that so many percent do not exceed; None where there are none."""
        if not self._seconds:
            return (None,) * len(percents)
        ranked = sorted(self._seconds)
        return tuple(ranked[max(0, -(-len(ranked) * percent // 100) - 1)] for percent in percents)


@dataclass(slots=True)
class ClassTimes:
    """Of one class of service."""

    #: From submission until it had a place.
    waited: Times = field(default_factory=Times)
    #: From then until its command began.
    prepared: Times = field(default_factory=Times)
    #: From then until the lab saw output.
    silent: Times = field(default_factory=Times)
    #: From submission until then.
    to_output: Times = field(default_factory=Times)
    #: From submission until it logged its first metric.
    to_metric: Times = field(default_factory=Times)


class StartTimes:
    """Add first attempts, then read `classes`."""

    def __init__(self) -> None:
        self._classes: dict[str, ClassTimes] = {}

    @property
    def classes(self) -> Mapping[str, ClassTimes]:
        """By the name of the class."""
        return self._classes

    def add(self, starts: Iterable[StartFacts]) -> None:
        """Count these."""
        for facts in starts:
            times = self._classes.get(facts.qos) or self._classes.setdefault(facts.qos, ClassTimes())
            # On a cluster the job waits there until it starts, and when it had its place before that is not known.
            handed_over = bool(read_cluster(facts.node)[0])
            if facts.started_at is None:
                if not handed_over:
                    times.waited.add(facts.leased_at - facts.submitted_at)
                continue
            times.waited.add((facts.started_at if handed_over else facts.leased_at) - facts.submitted_at)
            if not handed_over:
                times.prepared.add(facts.started_at - facts.leased_at)
            if facts.output_at is not None:
                times.silent.add(facts.output_at - facts.started_at)
                times.to_output.add(facts.output_at - facts.submitted_at)
            if facts.metric_at is not None:
                times.to_metric.add(facts.metric_at - facts.submitted_at)
