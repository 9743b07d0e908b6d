"""What would make a waiting job start: the smallest change to what it asks for with which it starts now, or sooner.

Each change is tried by the walk itself, with the job in its place in line and everything else as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, nextafter

from carrel.core.domain.placement import Alternative, Waiting
from carrel.core.domain.resources import Resources
from carrel.core.domain.units import GIB, MIB, format_count, format_duration, format_size
from carrel.core.policy.placer import Placer
from carrel.core.policy.situation import Outcome

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
#: Walltimes that are tried, seconds.
TIMES = (
    *(_MINUTE * minutes for minutes in (5, 10, 15, 30, 45)),
    *(_HOUR * hours for hours in (1, 2, 3, 4, 6, 8, 12, 18)),
    *(_DAY * days for days in (1, 2, 3, 4, 5, 7, 10, 14, 21)),
)
_CPUS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_MEMORY = (512 * MIB, *(GIB * size for size in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)))
#: A start that is sooner by less than this is not worth a word, seconds.
_WORTH = 300.0

#: What can be asked for less of: the values that are tried for a job, and how one is said.
_LESS: Mapping[str, tuple[Callable[[Resources], Sequence[int]], Callable[[int], str]]] = {
    "time": (lambda _: TIMES, format_duration),
    "memory": (lambda _: _MEMORY, format_size),
    "cpus": (lambda _: _CPUS, lambda number: format_count(number, "CPU")),
    "nodes": (lambda wanted: range(1, wanted.nodes), lambda number: format_count(number, "node")),
    "gpus": (lambda wanted: range(1, wanted.gpus), lambda number: format_count(number, "GPU")),
}


class Alternatives:
    """What would make the jobs start that wait after one placement. Not safe to ask from several threads at once."""

    def __init__(self, outcome: Outcome) -> None:
        self._now = outcome.now
        self._jobs = {passed.job.id: passed.job for passed in outcome.passed}
        self._types = sorted({device.type for node in outcome.picture.nodes for device in node.devices})
        self._placer = Placer.of(outcome.picture, outcome.order)
        self._promised = {promise.job.id: promise.at for promise in outcome.promises.made}

    def of(self, job_id: int, estimate: float | None = None) -> Sequence[Alternative]:
        """Return the smallest change of each kind that makes the job start now, or else sooner than it should.

        `estimate` is when it should start, Unix seconds. Those that start first come first; of these, less time, another type of
        GPU, less memory, fewer processors, fewer nodes, fewer GPUs.
        """
        job = self._jobs.get(job_id)
        if job is None:
            return ()
        before = self._promised.get(job_id, inf if estimate is None else estimate)
        found = list(self._tried(job))
        if any(change.start is None for change in found):
            return tuple(change for change in found if change.start is None)
        sooner = [change for change in found if change.start is not None and change.start <= before - _WORTH]
        soonest = min((change.start or inf for change in sooner), default=inf)
        return tuple(change for change in sooner if change.start == soonest)

    def _tried(self, job: Waiting) -> Iterator[Alternative]:
        wanted = job.resources
        try:
            for name, (values, words) in _LESS.items():
                if name == "memory" and wanted.gpus:
                    yield from self._other_types(job)
                yield from self._less(job, name, values(wanted), words)
        finally:
            self._placer.wait(job)

    def _less(self, job: Waiting, name: str, values: Sequence[int], words: Callable[[int], str]) -> Iterator[Alternative]:
        """Find the largest value below what is asked for with which the job starts as soon as with the least."""
        asked: int = getattr(job.resources, name)
        tried = [value for value in values if value < asked]
        if not tried:
            return
        soonest = self._start(job, **{name: tried[0]})
        if soonest == inf:
            return
        low, high = 0, len(tried) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._start(job, **{name: tried[middle]}) <= soonest else (low, middle - 1)
        yield Alternative(option=name, value=words(tried[low]), instead_of=words(asked), start=self._later(soonest))

    def _other_types(self, job: Waiting) -> Iterator[Alternative]:
        """Try GPUs of each other type."""
        asked = job.resources.gpu_type
        for one in self._types if asked is not None else ():
            if one != asked and (start := self._start(job, gpu_type=one)) < inf:
                yield Alternative(option="gpu_type", value=one, instead_of=asked or "", start=self._later(start))
                return

    def _later(self, start: float) -> float | None:
        return None if start == self._now else start

    def _start(self, job: Waiting, **changed: object) -> float:
        """Return when the job would start: now, or at the moment that it would be promised; infinite where neither is known."""
        self._placer.wait(replace(job, resources=replace(job.resources, **changed)))  # type: ignore[arg-type]
        outcome = self._placer.look(self._now)
        if any(start.job_id == job.id for start in outcome.starts):
            return self._now
        promise = outcome.promises.of(job)
        # Where jobs are overdue a promise may be for now, which is still no start.
        return inf if promise is None else max(promise.at, nextafter(self._now, inf))
