"""Where the time of sessions went that borrow GPUs for their cells: by what their broker told of each cell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from carrel.core.domain.units import format_duration
from carrel.core.gpu_use.groups import Range

#: Seconds between two cells up to which their user is taken to think, or to have cells without GPUs run.
THINKING = 600.0
#: What brokers round away of `CellFacts.computed` is no pause.
_ROUNDED = 0.01


class SessionTime(StrEnum):
    """What a session did for a while."""

    #: A cell had GPUs; waited for them; had begun, and others had them.
    COMPUTED = "computed"
    WAITED = "waited"
    PAUSED = "paused"
    #: A cell waited for what its user types (`input()`, a debugger's prompt).
    INPUT = "input"
    #: Nothing wanted a GPU, for at most ten minutes; for longer.
    THINKING = "thinking"
    AWAY = "away"
    #: All of a session of which no cell ever wanted one.
    UNUSED = "unused"


class CellFacts(NamedTuple):
    """One cell that had GPUs, with its session; or a session that has none yet, where `asked_at` is None. Unix seconds."""

    owner: str
    account: str
    qos: str
    session: int
    opened_at: float
    #: None: it is open.
    closed_at: float | None
    asked_at: float | None = None
    granted_at: float = 0.0
    seen_at: float = 0.0
    #: Seconds between those two in which it was not paused.
    computed: float = 0.0
    gpus: int = 0
    #: True: it gave the GPUs back because it waits for its user.
    input: bool = False
    #: For how much of the time in which it computed its GPUs were busy, in percent; None: not measured.
    busy: float | None = None


class SessionTimes:
    """Of some sessions together: `add` their cells, which come by session and in the order in which they were asked for."""

    def __init__(self) -> None:
        self.sessions = self.cells = 0
        #: GPUs × seconds in which cells computed.
        self.gpu_seconds = 0.0
        #: That part of it in which the GPUs were measured, and for how much of that they were busy.
        self.measured = self.busy = 0.0
        self.seconds = dict.fromkeys(SessionTime, 0.0)

    def add(self, cells: Sequence[CellFacts], within: Range, now: float) -> None:
        """Count those of one session, as far as they lie in the range."""
        self.sessions += 1
        for cell in cells:
            if cell.asked_at is not None and (length := cell.seen_at - cell.granted_at) > 0:
                self.cells += within.begin <= cell.granted_at < within.end
                part = within.overlap(cell.granted_at, cell.seen_at) / length
                computed = cell.gpus * cell.computed * part
                self.gpu_seconds += computed
                if cell.busy is not None:
                    self.measured += computed
                    self.busy += computed * cell.busy / 100
        for what, since, until in _stretches(cells, now):
            self.seconds[what] += within.overlap(since, until)


#: What rows of such a report may be, and what of a cell says which one it is in.
SESSION_ROWS = {"user": "owner", "account": "account", "qos": "qos"}


def session_times(cells: Iterable[CellFacts], by: str, within: Range, now: float) -> dict[str, SessionTimes]:
    """Return where the time went, by one of `SESSION_ROWS`."""
    found: dict[str, SessionTimes] = {}
    for _, of_session in groupby(cells, key=lambda cell: cell.session):
        those = list(of_session)
        found.setdefault(getattr(those[0], SESSION_ROWS[by]), SessionTimes()).add(those, within, now)
    return found


def told(cells: int, gpu_seconds: float, busy: float | None, seconds: Mapping[SessionTime, float]) -> str:
    """Return what the cells of one session cost, in words; "" where none of them is over. `busy`: in percent."""
    if not cells:
        return ""

    def what(words: Mapping[SessionTime, str]) -> str:
        return ", ".join(text.format(format_duration(round(seconds[name]))) for name, text in words.items() if seconds[name] >= 1)

    had = f"{cells} had GPUs" if cells > 1 else "one had a GPU"
    cost = f"{gpu_seconds / 3600:.2f} GPU-hours" if gpu_seconds >= 36 else f"{gpu_seconds:.0f} GPU-seconds"
    own = what({SessionTime.WAITED: "waited {} for them", SessionTime.PAUSED: "were paused for {}"})
    idle = what({SessionTime.INPUT: "{} for input", SessionTime.THINKING: "{} between cells", SessionTime.AWAY: "{} away"})
    cost += "" if busy is None else f", busy for {busy:.0f} % of them"
    return f"{had}, {cost}{f'; {own}' if own else ''}{f'. No GPU was used in {idle}' if idle else ''}."


def _stretches(cells: Sequence[CellFacts], now: float) -> Iterator[tuple[SessionTime, float, float]]:
    """What the session did, one after the other, without gaps. Where cells of two kernels meet, the first one counts."""
    first = cells[0]
    at, closed = first.opened_at, now if first.closed_at is None else first.closed_at
    if first.asked_at is None:
        yield SessionTime.UNUSED, at, closed
        return
    idle = SessionTime.THINKING
    for cell in cells:
        asked = cell.granted_at if cell.asked_at is None else cell.asked_at
        if asked > at:
            yield _idle(idle, asked - at), at, asked
            at = asked
        if cell.granted_at > at:
            yield SessionTime.WAITED, at, cell.granted_at
            at = cell.granted_at
        if cell.seen_at > at:
            # When its pauses were is not known, only for how long: as if they had come last.
            length = cell.seen_at - cell.granted_at
            part = 1.0 if length - cell.computed < _ROUNDED else cell.computed / length
            paused_at = at + (cell.seen_at - at) * part
            yield SessionTime.COMPUTED, at, paused_at
            yield SessionTime.PAUSED, paused_at, cell.seen_at
            at = cell.seen_at
            idle = SessionTime.INPUT if cell.input else SessionTime.THINKING
    if closed > at:
        yield _idle(idle, closed - at), at, closed


def _idle(what: SessionTime, seconds: float) -> SessionTime:
    return SessionTime.AWAY if what is SessionTime.THINKING and seconds > THINKING else what
