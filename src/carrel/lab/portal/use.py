"""The page of use: who had GPUs for how long, what came of it, and how long jobs take to begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.errors import Invalid
from carrel.core.gpu_use import SESSION_ROWS, End, Grouping, SessionTime
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.reports import session_report_view, start_report_view, use_report_view
from carrel.lab.portal.requests import caller_of
from carrel.lab.portal.templating import Templates
from carrel.wire.v1 import SessionTimesView, UseView

#: Rows in the table; `carrel usage` has all.
_SHOWN = 50
#: Of a longer time each cell is not read for a page; `carrel report sessions` does it.
_CELLS_READ = timedelta(days=93)
#: Width of the longest bar, in the units of its picture.
_WIDTH = 1000.0
_LENT = "lent"
#: What a part of a bar stands for, in the order of the parts.
PARTS: dict[str, str] = {
    End.COMPLETED: "The command ended well.",
    End.CONTINUED: "It reached its walltime, and another attempt went on from its checkpoint.",
    End.FAILED: "The command failed, or used too much memory.",
    End.TIMEOUT: "It reached its walltime, and nothing went on.",
    End.CANCELLED: "Somebody cancelled it.",
    End.LOST: "Another job took its place, or its node or runner was lost.",
    End.RUNNING: "It is not over.",
    End.SESSION: "Sessions had reserved it.",
    _LENT: "Cells of sessions and calls borrowed it.",
}
#: The head of each column of sessions' time.
SESSION_TIMES: dict[str, str] = {
    SessionTime.COMPUTED: "Computed",
    SessionTime.WAITED: "Waited for GPUs",
    SessionTime.PAUSED: "Others had them",
    SessionTime.INPUT: "Waited for input",
    SessionTime.THINKING: "Between cells",
    SessionTime.AWAY: "Away",
    SessionTime.UNUSED: "Never used one",
}
_TITLES = {
    Grouping.USER: "User",
    Grouping.ACCOUNT: "Account",
    Grouping.PROJECT: "Project",
    Grouping.QOS: "Class",
    Grouping.GPU_TYPE: "Type of GPU",
    Grouping.NODE: "Node",
    Grouping.WEEK: "Week",
    Grouping.KIND: "Kind",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar: the same GPU time in words, and where it is drawn."""

    name: str
    hours: float
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row as the page shows it."""

    use: UseView
    hours: float
    parts: Sequence[Part]


class UsePage:
    """``/use``."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._look = look

    def routes(self) -> list[BaseRoute]:
        """The route of the page."""
        return [Route("/use", self.page, methods=["GET"])]

    def page(self, request: Request) -> Response:
        """The last four weeks, or the days that are asked for."""
        caller, asked = caller_of(request), request.query_params
        by = _grouping(asked.get("by"))
        begin, last = _day(asked.get("from")), _day(asked.get("to"))
        # People mean the whole of the last day.
        end = None if last is None else (last + timedelta(days=1)).timestamp()
        since = None if begin is None else begin.timestamp()
        gpu_use = self._gateway.lab.gpu_use
        found = use_report_view(gpu_use.use(caller, begin=since, end=end, by=by))
        starts = start_report_view(gpu_use.starts(caller, begin=since, end=end))
        rows_of = by if by in SESSION_ROWS else Grouping.USER
        sessions: Sequence[SessionTimesView] = ()
        if found.end - found.begin <= _CELLS_READ:
            sessions = session_report_view(gpu_use.sessions(caller, begin=since, end=end, by=rows_of)).rows
        days = {name: text for name in ("from", "to") if (text := asked.get(name))}
        return self._look.page(
            request,
            "use.html",
            found=found,
            title=_TITLES[by],
            rows=_rows(found.rows[:_SHOWN]),
            total=_rows([found.total])[0],
            left_out=max(0, len(found.rows) - _SHOWN),
            parts=PARTS,
            starts=starts.classes,
            sessions=sessions[:_SHOWN],
            sessions_by=_TITLES[rows_of],
            session_times=SESSION_TIMES,
            groupings={one.value: (_TITLES[one], "/use?" + urlencode(days | {"by": one.value})) for one in Grouping},
            days=days,
        )


def _grouping(text: str | None) -> Grouping:
    if text is None:
        return Grouping.USER
    if text not in list(Grouping):
        raise Invalid(f'"{text[:40]}" is nothing to group by.', remedy=f"There are: {', '.join(Grouping)}.")
    return Grouping(text)


def _day(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        day = None
    if day is None or not 1970 <= day.year < 9999:
        raise Invalid(f'"{text[:40]}" is no day.', remedy="Write it like 2026-11-23.")
    return day


def _rows(uses: Sequence[UseView]) -> list[Row]:
    """With bars by whose lengths they compare."""
    most = max((use.held + use.lent for use in uses), default=0.0)
    return [Row(use, (use.held + use.lent) / 3600, _parts(use, most)) for use in uses]


def _parts(use: UseView, most: float) -> list[Part]:
    found, x = [], 0.0
    for name in PARTS:
        seconds = use.lent if name == _LENT else use.held_by_end.get(name, 0.0)
        if seconds > 0:
            width = _WIDTH * seconds / most
            found.append(Part(name, seconds / 3600, x, width))
            x += width
    return found
