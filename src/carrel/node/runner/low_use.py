"""Looks into a job whose GPUs are hardly busy, and tells its owner why that probably is.

Nothing is done for a job that uses its GPUs. Where the mean of ten minutes is low, its processes are looked at for some seconds,
and its Python programs are asked where they are (`carrel_stacks`). Only processes below the runner are looked at and asked: the
job's own. What they answer is the job's word, of which a few short ones are repeated to its owner.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.launch import Launch, Usage
from carrel.core.gpu_use import ENOUGH, ENOUGH_OF_SESSION, LOW, STILL, Look, low_use, read_stacks
from carrel.core.spool import LogWriter
from carrel.core.spool.foreign import open_regular, read_last
from carrel.node.runner.report import Reporter
from carrel.node.runner.samples import Sampler
from carrel.node.runner.tree import Waits, read_proc, waits_of
from carrel.node.runner.variables import STACKS

#: Questions of a look, and how many of them there are between two samples.
_QUESTIONS, _RATE = 20, 20
#: Programs that are asked, and processes that are looked at.
_ASKED, _LOOKED_AT = 16, 256
#: Bytes of answers, and of the names of files that a process has mapped, that are read.
_MOST, _MOST_MAPPED = 256 * 1024, 1024 * 1024
_FOREVER = float("inf")
_URGENT = 1 << (signal.SIGURG - 1)
#: In the command line of a process that Python has started as a part of a program (multiprocessing).
_PARTS = ("multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing.resource_tracker", "multiprocessing-fork")


@dataclass(frozen=True, slots=True)
class _Moment:
    """One sample."""

    at: float
    busy: Mapping[str, float]
    cpu_seconds: float
    log_size: int


class LowUse:
    """Watches the use of one attempt's GPUs. Each cause is told once."""

    def __init__(
        self, launch: Launch, sampler: Sampler, log: LogWriter, reporter: Reporter, *, directory: Path, temporary: Path
    ) -> None:
        """`directory` is the command's working directory, `temporary` its TMPDIR."""
        self._launch = launch
        self._sampler = sampler
        self._log = log
        self._reporter = reporter
        self._directory = directory
        self._answers = temporary / STACKS
        self._is_session = launch.task.session is not None
        self._moments: deque[_Moment] = deque(maxlen=ENOUGH_OF_SESSION if self._is_session else ENOUGH)
        self._memory: Mapping[str, int] = {}
        self._told: set[str] = set()
        #: When the next question is due (monotonic).
        self.due = _FOREVER
        self._left = 0
        self._begin_of_answers = 0
        self._first: Mapping[int, Waits] = {}
        self._programs: Sequence[int] = ()
        self._workers = 0
        self._seen: list[bool] = []

    def sampled(self, usage: Usage, now: float, *, stopped: bool) -> None:
        """A sample was taken. While the job is `stopped` its GPUs are others', and what was seen before says nothing."""
        if stopped:
            self._moments.clear()
            self.due = _FOREVER
        elif usage.gpu_utilization:
            self._moments.append(_Moment(now, usage.gpu_utilization, usage.cpu_seconds, self._log.size))
            self._memory = usage.gpu_memory
            if len(self._moments) == self._moments.maxlen and self.due == _FOREVER and self._mean() < LOW:
                self._begin(now)

    def look(self, now: float) -> None:
        """Ask once more; or, after the last question, say what was found."""
        if self._left:
            self._left -= 1
            self._ask()
            self.due = now + self._launch.limits.sample / _RATE
            return
        self.due = _FOREVER
        found = self._found()
        # Told again when there was time for another cause.
        self._moments.clear()
        advice = low_use(found, self._launch.resources)
        if advice is not None and advice.code not in self._told:
            self._told.add(advice.code)
            self._log.note(advice.message)
            self._reporter.record(advice)

    def _mean(self) -> float:
        means = self._means()
        return sum(means.values()) / len(means)

    def _means(self) -> dict[str, float]:
        names = self._moments[-1].busy
        return {name: sum(one.busy.get(name, 0.0) for one in self._moments) / len(self._moments) for name in names}

    # --- the look -----------------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self._left, self.due, self._seen = _QUESTIONS, now, []
        self._begin_of_answers = self._size_of_answers()
        self._first = self._all()
        self._programs, self._workers = _programs(self._first)

    def _ask(self) -> None:
        for pid in self._programs:
            about = waits_of(pid)
            if about is None:
                continue
            self._seen.append(about.disk)
            if about.handles & _URGENT and _is_python(pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGURG)

    def _all(self) -> dict[int, Waits]:
        found = ((pid, waits_of(pid)) for pid in self._sampler.processes[:_LOOKED_AT])
        return {pid: about for pid, about in found if about is not None}

    def _found(self) -> Look:
        first, middle, last = (self._moments[index] for index in (0, len(self._moments) // 2, -1))
        before, after = self._first, self._all()
        asks = any(about.handles & _URGENT for pid in self._programs if (about := after.get(pid)) is not None)
        said = self._said()
        faults = sum(about.faults - before[pid].faults for pid, about in after.items() if pid in before)
        sizes = {device.uuid: device.memory for device in self._launch.devices}
        filled = [used / sizes[name] for name, used in self._memory.items() if sizes.get(name)]
        return Look(
            seconds=last.at - first.at,
            gpu_mean=self._means(),
            gpu_memory=max(filled, default=None),
            opened=self._sampler.gpus.opened(),
            cpus=_cpus(first, last),
            workers=self._workers,
            faults=faults / max(self._launch.limits.sample / _RATE * _QUESTIONS, 1e-9),
            swapped=sum(about.swapped for about in after.values()),
            disk=round(100 * sum(self._seen) / len(self._seen)) if self._seen else 0,
            still=middle.log_size == last.log_size and _cpus(middle, last) < STILL,
            torch_without_cuda=_torch_without_cuda(list(after)),
            stack=read_stacks(said, str(self._directory)),
            silent=asks and not said,
            session=self._is_session,
        )

    def _size_of_answers(self) -> int:
        try:
            with open_regular(self._answers) as file:
                return file.seek(0, os.SEEK_END)
        except OSError:
            return 0

    def _said(self) -> str:
        """What was answered since the look began."""
        size = self._size_of_answers() - self._begin_of_answers
        try:
            return read_last(self._answers, min(size, _MOST)).decode(errors="replace") if size > 0 else ""
        except OSError:
            return ""


def _cpus(first: _Moment, last: _Moment) -> float:
    """How many processors were busy between two samples."""
    return (last.cpu_seconds - first.cpu_seconds) / max(last.at - first.at, 1e-9)


def _programs(processes: Mapping[int, Waits]) -> tuple[Sequence[int], int]:
    """Return the processes that are programs of their own, and how many more those have made of themselves."""
    words = {pid: read_proc(f"/proc/{pid}/cmdline") for pid in processes}
    forked = [pid for pid, about in processes.items() if words[pid] and words[pid] == words.get(about.parent)]
    parts = [pid for pid in processes if any(one in words[pid] for one in _PARTS)]
    helpers = {*forked, *parts}
    workers = [pid for pid in helpers if not any(one in words[pid] for one in _PARTS[1:3])]
    return [pid for pid in processes if pid not in helpers][:_ASKED], len(workers)


def _is_python(pid: int) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))  # noqa: PTH115, PTH119 - the name of a process' file
    except OSError:
        return False


def _torch_without_cuda(processes: Sequence[int]) -> bool:
    """True where some process has loaded PyTorch, and none the part of it that uses CUDA."""
    found = False
    for pid in processes:
        with suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
            mapped = file.read(_MOST_MAPPED)
            if b"/libtorch_cuda" in mapped:
                return False
            found = found or b"/libtorch_cpu.so" in mapped
    return found
