"""The course of a job: each attempt as a strip from the line to its end, and what it used as plots. Pure; the template draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from carrel.core.control.ports import AttemptRow
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.launch import (
    Claimed,
    Continued,
    Ended,
    EnvironmentReady,
    InputsReady,
    Paused,
    Resumed,
    Sampled,
    Started,
    Suspended,
)
from carrel.core.domain.resources import Resources
from carrel.core.domain.units import format_duration
from carrel.core.spool.course import Course
from carrel.lab.portal.metric_plots import path_of
from carrel.lab.portal.words import size

#: Strips are so wide, in units of their own; no phase is narrower than the second.
WIDTH, _LEAST = 1000.0, 4.0
#: Seconds below which a phase is not worth a word, but for the command's.
_SHORT = 0.5
#: GPUs of which there are plots.
_GPUS = 16
#: Phases of an attempt, by their looks, in words.
PHASES: Mapping[str, str] = {
    "queued": "in line",
    "environment": "environment",
    "inputs": "inputs",
    "preparing": "preparing",
    "running": "running",
    "lent": "GPUs lent to cells",
    "suspended": "suspended",
}
#: What ends with an entry of the journal, and what goes on from there.
_ENDING: Mapping[type, str] = {Claimed: "queued", EnvironmentReady: "environment", InputsReady: "inputs"}
_BEGINNING: Mapping[type, str] = {
    Started: "running",
    Resumed: "running",
    Continued: "running",
    Suspended: "suspended",
    Paused: "lent",
}


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of an attempt. Unix seconds."""

    look: str
    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A phase as it is drawn."""

    look: str
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStrip:
    """One attempt."""

    number: int
    boxes: Sequence[Box]
    #: Look and words of each kind of phase, in the order in which they began.
    said: Sequence[tuple[str, str]]
    #: How it ended; None: it has not.
    state: JobState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePlot:
    """Use of one thing while the command ran."""

    name: str
    last: str
    high: str
    path: str
    span: str


def strips_of(job: Job, attempts: Sequence[tuple[AttemptRow, Course]], now: float) -> Sequence[AttemptStrip]:
    """A strip of each attempt, and one of a job that is in line."""
    found, since = list[AttemptStrip](), job.submitted_at
    for row, course in attempts:
        if row.number > 1 and not found:
            since = row.leased_at  # the attempts before it are not shown
        over = row.ended_at if row.ended_at is not None else None if row.number == job.attempt else row.leased_at
        found.append(_strip(row.number, list(_phases(row, course, since, over or now)), row.state if over else None))
        since = over or now
    if not job.state.ended and job.state is JobState.PENDING:
        found.append(_strip(job.attempt + 1, [Phase("queued", since, now)], None))
    return found


def _phases(row: AttemptRow, course: Course, since: float, until: float) -> Iterator[Phase]:
    yield Phase("queued", since, row.leased_at)
    at, look = row.leased_at, "preparing"
    steps = [(min(max(entry.at, row.leased_at), until), type(entry.record)) for entry in course.steps]
    if not any(kind is Started for _, kind in steps) and row.started_at is not None:
        steps.append((row.started_at, Started))
    for moment, kind in steps:
        if kind is Ended:
            break
        if kind in _ENDING or kind in _BEGINNING:
            yield Phase(_ENDING.get(kind, look), at, moment)
            at, look = moment, _BEGINNING.get(kind, look)
    yield Phase(look, at, until)


def _strip(number: int, phases: Sequence[Phase], state: JobState | None) -> AttemptStrip:
    begin, end = phases[0].since, phases[-1].until
    scale = WIDTH / max(0.001, end - begin)
    boxes, sums = [], dict[str, list[float]]()
    for phase in phases:
        seconds = phase.until - phase.since
        if seconds < _SHORT and phase.look != "running":
            continue
        x = min((phase.since - begin) * scale, WIDTH - _LEAST)
        boxes.append(Box(look=phase.look, x=x, width=min(WIDTH - x, max(_LEAST, seconds * scale))))
        sums.setdefault(phase.look, []).append(seconds)
    said = []
    for look, lengths in sums.items():
        times = f"{len(lengths)} times, " if len(lengths) > 1 and look in ("lent", "suspended") else ""
        said.append((look, f"{PHASES[look]} {times}{format_duration(sum(lengths))}"))
    return AttemptStrip(number=number, boxes=boxes, said=said, state=state)


def use_plots(course: Course, resources: Resources) -> Sequence[UsePlot]:
    """Plots of processors, memory and GPUs, from two samples on."""
    samples = course.samples
    if len(samples) < 2:
        return []
    cpus, memory = resources.cpus * resources.nodes, resources.memory * resources.nodes
    busy = [(after[0], _cores(before, after)) for before, after in pairwise(samples)]
    used = [(at, float(sample.usage.memory)) for at, sample in samples]
    found = [
        _plot("Processors", busy, lambda value: f"{value:.1f}", cpus, f"of {cpus}"),
        _plot("Memory", used, size, memory, f"of {size(memory)}"),
    ]
    for index, name in enumerate(sorted({name for _, one in samples for name in one.usage.gpu_utilization})[:_GPUS]):
        percent = [(at, one.usage.gpu_utilization[name]) for at, one in samples if name in one.usage.gpu_utilization]
        found.append(_plot(f"GPU {index} busy", percent, lambda value: f"{value:.0f} %", 100.0, ""))
        bytes_of = [(at, float(one.usage.gpu_memory[name])) for at, one in samples if name in one.usage.gpu_memory]
        found.append(_plot(f"GPU {index} memory", bytes_of, size, 0.0, ""))
    return [plot for plot in found if plot is not None]


def _cores(before: tuple[float, Sampled], after: tuple[float, Sampled]) -> float:
    seconds = after[0] - before[0]
    return max(0.0, (after[1].usage.cpu_seconds - before[1].usage.cpu_seconds) / seconds) if seconds > 0 else 0.0


def _plot(
    name: str, points: Sequence[tuple[float, float]], words: Callable[[float], str], most: float, of: str
) -> UsePlot | None:
    """From nothing to what was asked for, or to the most that was seen."""
    if len(points) < 2:
        return None
    seen = max(value for _, value in points)
    span = format_duration(points[-1][0] - points[0][0])
    high = f"at most {words(seen)} {of}".rstrip()
    return UsePlot(name=name, last=words(points[-1][1]), high=high, path=path_of(points, 0.0, max(most, seen, 1e-9)), span=span)
