"""What came out of a week of notebooks in one mode: one entry a cell and one a time that GPUs were held; the rest is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from statistics import fmean

from carrel.core.domain.errors import Invalid


class Start(StrEnum):
    """What a cell found when it got its GPUs."""

    #: It is the first of its session: there is no state yet.
    FRESH = "fresh"
    #: Its session's state was on the GPUs.
    WARM = "warm"
    #: The state was brought back from host memory, or was lost and has to be made again.
    COLD = "cold"


class Waits(StrEnum):
    """Which waits a statistic is about."""

    #: Of every cell, also of those that cannot wait because their session holds its GPUs.
    CELLS = "cells"
    #: Of every cell that had to ask for GPUs: the same in modes that lend for a cell, the openings of sessions in a reservation.
    REQUESTS = "requests"
    #: The longest of each session.
    SESSIONS = "sessions"


@dataclass(frozen=True, slots=True)
class CellRun:
    """How it went for one cell. Times are seconds after the beginning of the trace."""

    session: int
    cell: int
    #: When its user would have run it: its think time after the cell before it.
    ready: float
    #: When it got its GPUs; moving state comes after that.
    granted: float
    #: Seconds for which state was moved before it computed, and each time that it went on.
    swap: float
    end: float
    start: Start
    #: True when it had to ask for its GPUs; False when its session had kept them.
    asked: bool
    #: Seconds for which it was suspended in mid-flight, or waited to go on.
    paused: float = 0.0

    @property
    def wait(self) -> float:
        """Seconds in line, without the moving of state."""
        return self.granted - self.ready


@dataclass(frozen=True, slots=True)
class Held:
    """GPUs that a session held without a break, whether a cell ran or not. Seconds after the beginning of the trace."""

    session: int
    gpus: int
    start: float
    end: float

    @property
    def gpu_seconds(self) -> float:
        """GPUs times seconds."""
        return self.gpus * (self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeResult:
    """One week in one mode."""

    mode: str
    #: GPUs that there were.
    gpus: int
    #: In the order of the sessions, and of the cells in them.
    cells: Sequence[CellRun]
    #: In the order in which they ended.
    held: Sequence[Held]
    #: GPU-hours in which cells computed, without moving of state.
    gpu_hours_of_cells: float
    #: States that were thrown away although a later cell of their session needed them.
    lost_states: int = 0
    #: States that were moved to host memory because somebody needed the room.
    evictions: int = 0
    #: Cells that were suspended in mid-flight, each time counted.
    pauses: int = 0

    @property
    def gpu_hours_held(self) -> float:
        """GPU-hours in which GPUs were not to be had for others."""
        return sum(one.gpu_seconds for one in self.held) / 3600

    @property
    def acquisitions(self) -> int:
        """How often a session took GPUs."""
        return len(self.held)

    def starts(self, kind: Start) -> int:
        """Number of cells that began like this."""
        return sum(1 for one in self.cells if one.start is kind)

    @property
    def warm_starts(self) -> int:
        """Cells whose state was on the GPUs."""
        return self.starts(Start.WARM)

    @property
    def cold_starts(self) -> int:
        """Cells whose state had to be brought back or made again."""
        return self.starts(Start.COLD)

    @property
    def fresh_starts(self) -> int:
        """First cells of sessions."""
        return self.starts(Start.FRESH)

    def waits(self, of: Waits = Waits.CELLS) -> Sequence[float]:
        """Seconds in line, in the order of the cells, or of the sessions."""
        if of is not Waits.SESSIONS:
            return [one.wait for one in self.cells if one.asked or of is Waits.CELLS]
        longest: dict[int, float] = {}
        for one in self.cells:
            longest[one.session] = max(one.wait, longest.get(one.session, 0.0))
        return list(longest.values())

    def wait(self, share: float, of: Waits = Waits.CELLS) -> float:
        """Seconds that at least this `share` of the waits do not exceed (nearest rank): 0.5 is the median, 1 the maximum."""
        return percentile(self.waits(of), share)

    def mean_wait(self, of: Waits = Waits.CELLS) -> float:
        """Seconds."""
        return fmean(self.waits(of))

    @property
    def swap_seconds(self) -> float:
        """Seconds that cells spent on moving state, all together."""
        return sum(one.swap for one in self.cells)

    @property
    def paused_seconds(self) -> float:
        """Seconds for which cells were suspended in mid-flight, all together."""
        return sum(one.paused for one in self.cells)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of `values` that at least this `share` of them do not exceed (nearest rank)."""
    if not values:
        raise Invalid("There are no values.", remedy="Give one or more.")
    if not 0 <= share <= 1:
        raise Invalid(f"The share is {share:g}.", remedy="Give 0 to 1.")
    return sorted(values)[max(0, ceil(share * len(values) - 1e-9) - 1)]
