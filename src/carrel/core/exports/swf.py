"""The Standard Workload Format of the Parallel Workloads Archive, version 2.2 (cs.huji.ac.il/labs/parallel/workload/swf.html).

A processor is a GPU, as for `carrel simulate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Protocol

from carrel.core.domain.exported_attempt import ExportedAttempt
from carrel.core.domain.job import JobState
from carrel.core.exports.sacct import date_of, plain_name

_UNKNOWN = -1
_STATUS: Mapping[str, int] = {JobState.COMPLETED: 1, JobState.CANCELLED: 5}
_FAILED = 0
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class _Numbering(Protocol):
    def number(self, kind: str, name: str) -> int:
        """The number of a name, 1 or more."""


class Ordinals:
    """1, 2, 3 and so on, as names come."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {}

    def number(self, kind: str, name: str) -> int:
        """The number of a name of this kind."""
        known = self._known.setdefault(kind, {})
        return known.setdefault(name, len(known) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwfHeader:
    """What the comments before the jobs say."""

    #: What the lab is called.
    computer: str
    jobs: int
    #: Of the first submission, Unix seconds.
    begin: float
    #: Of the last one.
    end: float
    #: Machines and their GPUs as they are now; None: not known.
    nodes: int | None
    gpus: int | None
    #: Classes of service of tasks, and partitions: the first is number 1.
    queues: Sequence[str]
    partitions: Sequence[str]

    def lines(self) -> Iterator[str]:
        """Line by line, without ends."""
        known: list[tuple[str, object]] = [
            ("Version", "2.2"),
            ("Computer", plain_name(self.computer)),
            ("Conversion", "carrel report jobs --format swf"),
            ("MaxJobs", self.jobs),
            ("MaxRecords", self.jobs),
            ("UnixStartTime", floor(self.begin)),
            ("TimeZoneString", "UTC"),
            ("StartTime", _date_and_time(self.begin)),
            ("EndTime", _date_and_time(self.end)),
        ]
        if self.nodes and self.gpus:
            known += [("MaxNodes", self.nodes), ("MaxProcs", self.gpus)]
        known += [("MaxQueues", len(self.queues)), ("Queue", "0 sessions, which are interactive")]
        known += [("Queue", f"{number} {plain_name(name)}") for number, name in enumerate(self.queues, start=1)]
        known.append(("MaxPartitions", len(self.partitions)))
        known += [("Partition", f"{number} {plain_name(name) or 'all'}") for number, name in enumerate(self.partitions, start=1)]
        known += [
            ("Note", "Processors are GPUs: 0 of jobs without one. Memory is the host's, for each GPU."),
            ("Note", "Each line is one attempt. That before it is its preceding job, and its submit time that one's end."),
        ]
        yield from (f"; {label}: {value}" for label, value in known)


class SwfWriter:
    """Makes the lines of one file: attempts have to come in the order of their submission."""

    def __init__(self, header: SwfHeader, numbers: _Numbering | None = None) -> None:
        """`numbers`: of users, accounts and names; without, they are counted as they come."""
        self._begin = floor(header.begin)
        self._queues = {name: number for number, name in enumerate(header.queues, start=1)}
        self._partitions = {name: number for number, name in enumerate(header.partitions, start=1)}
        self._numbers: _Numbering = Ordinals() if numbers is None else numbers
        self._last = 0
        #: Lines of attempts that another one follows, by job.
        self._open: dict[int, int] = {}

    def line(self, attempt: ExportedAttempt) -> str:
        """The line of the next attempt, without its end."""
        self._last += 1
        preceding = self._open.pop(attempt.job, _UNKNOWN)
        if attempt.followed:
            self._open[attempt.job] = self._last
        gpus = attempt.gpus * attempt.nodes
        submitted = floor(attempt.submitted_at)
        since = None if attempt.since is None else max(floor(attempt.since), submitted)
        ran = since is not None and attempt.ended_at is not None
        number = self._numbers.number
        fields = (
            self._last,
            max(0, submitted - self._begin),
            _UNKNOWN if since is None else since - submitted,
            max(0, floor(attempt.ended_at or 0.0) - (since or 0)) if ran else _UNKNOWN,
            _UNKNOWN if since is None else gpus,
            _UNKNOWN,  # processor time for each GPU says nothing
            _for_each(attempt.memory_peak, gpus),
            gpus,
            attempt.time,
            _for_each(attempt.memory * attempt.nodes, gpus),
            _UNKNOWN if attempt.ended_at is None else _STATUS.get(attempt.slurm_state, _FAILED),
            number("user", attempt.owner),
            number("account", attempt.account),
            number("name", attempt.name),
            0 if attempt.is_session else self._queues[attempt.qos],
            self._partitions[attempt.partition],
            preceding,
            _UNKNOWN if preceding == _UNKNOWN else 0,
        )
        return " ".join(map(str, fields))


def _for_each(size: int, gpus: int) -> int:
    """Kilobytes for each GPU."""
    return size // 1024 // gpus if size and gpus else _UNKNOWN


def _date_and_time(at: float) -> str:
    """As date(1) writes it: "Fri Nov 27 02:20:51 UTC 2026"."""
    days, seconds = divmod(floor(at), 86400)
    year, month, day = date_of(days)
    # The first day of 1970 was a Thursday.
    weekday = ("Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed")[days % 7]
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{weekday} {_MONTHS[month - 1]} {day:2} {clock} UTC {year}"
