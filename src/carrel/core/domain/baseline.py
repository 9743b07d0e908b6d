"""Baselines: the job with whose results later jobs of a project are compared, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.comparison import Agreement

#: Later jobs that a table shows.
MOST_ROWS = 50
#: Things of a kind that differ, up to which each is named.
MOST_NAMED = 20


class Outcome(StrEnum):
    """What a calibration found."""

    SAME = "same"
    MOVED = "moved"
    #: Too little is known: it was cut short, or results are missing.
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Something that a job had otherwise than the baseline."""

    what: str
    #: "none": it had none.
    before: str
    after: str
    #: Of numbers: the change, by the size of the baseline's; None where that says nothing.
    relative: float | None = None

    def __str__(self) -> str:
        """ "loss +2.3 %", "numpy 1.26.4 -> 2.0.1"."""
        if self.relative is not None:
            return f"{self.what} {self.relative * 100:+.2g} %"
        return f"{self.what} {_short(self.before)} -> {_short(self.after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How an attempt stands beside the baseline. What differs is named up to `MOST_NAMED` of each kind."""

    agreement: Agreement
    tolerance: float
    #: How many were compared.
    outputs: int
    metrics: int
    #: The first step at which a metric is further away than allowed; None: there is none, or steps are not known.
    step: int | None = None
    #: Metrics whose last values differ, and outputs that do.
    moved_metrics: tuple[Moved, ...]
    moved_outputs: tuple[str, ...]
    #: What it ran with; "": it is not known.
    python: str
    machine: str
    #: Those that compute numbers for others come first.
    packages: tuple[Moved, ...]
    #: What else differs that results may follow from, and node and machine in any case.
    others: tuple[Moved, ...]
    #: Why results are not known, in a sentence each.
    not_known: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """In a few words: "different from step 3 on"."""
        match self.agreement:
            case Agreement.IDENTICAL:
                return "bit-identical"
            case Agreement.WITHIN_TOLERANCE:
                return f"within {self.tolerance:g}"
            case Agreement.DIFFERENT:
                return "different" if self.step is None else f"different from step {self.step} on"
        return "not known" if self.outputs or self.metrics or self.not_known else "no results to compare"

    @property
    def told(self) -> str:
        """The same, with what moved and what differs beside results: a few of each."""
        return "; ".join([self.words, *_few(self.moved_metrics or self.moved_outputs), *_few(self.packages), *_few(self.others)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The job with whose results later jobs of the same owner and name are compared."""

    id: int
    owner: str
    #: The name of the jobs that are compared; an owner has one baseline of a project.
    project: str
    job: int
    #: How far a metric may be away, by the larger of both.
    tolerance: float
    #: Patterns (`*`, `?`) of outputs and metrics that do not count.
    ignored: tuple[str, ...]
    #: Unix seconds.
    set_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A baseline that was run again, to see what moved."""

    baseline: int
    #: The job that runs it again.
    job: int
    #: Counted for each baseline, from 1.
    number: int
    #: Subject of whose job it is.
    by: str
    #: True: its environment was resolved anew; else it has the baseline's lock.
    fresh: bool
    begun_at: float
    #: When it was known what came of it; None: it is not yet.
    known_at: float | None = None
    #: How the job ended, and why, where that was not well.
    state: str = ""
    message: str = ""
    #: None: it did not end well.
    drift: Drift | None = None
    outcome: Outcome | None = None
    #: Who has begun it has asked for it since, and begins another one the next time.
    collected: bool = False

    @property
    def told(self) -> str:
        """What came of it, in words; "" while that is not known."""
        if self.drift is not None:
            return self.drift.told
        return f"{self.state}: {self.message}" if self.message else self.state


def _few(found: tuple[Moved, ...] | tuple[str, ...]) -> list[str]:
    shown = [str(one) for one in found[:3]]
    return [", ".join(shown) + (f" and {len(found) - 3} more" if len(found) > 3 else "")] if shown else []


def _short(text: str) -> str:
    text = text.removeprefix("sha256:")[:12] if text.startswith("sha256:") else text
    return text if len(text) <= 40 else f"{text[:37]}..."
