"""A job that holds GPUs and hardly uses them, and what it probably waits for. From samples, in words that say what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from carrel.core.domain.launch import Advised
from carrel.core.domain.resources import Resources
from carrel.core.domain.units import GIB, format_count, format_duration, format_size
from carrel.core.gpu_use.stacks import Stack, WaitsFor

#: Percent of the time below which a GPU is hardly used, and below which it is not used.
LOW, UNUSED = 15.0, 1.0
#: Samples in a row after which something is said: ten minutes of the runner's, of every five seconds; of a session an hour's.
ENOUGH, ENOUGH_OF_SESSION = 120, 720
#: Of one processor: busy all the time, idle, and so little that a session computes nothing.
_BUSY, _IDLE, _NOTHING = 0.8, 0.3, 0.02
#: The same of a program that does not get on: what it needs to be asked where it is.
STILL = 0.002
#: Pages that are read from the disk again in a second, from which on a program is slowed by it.
_FAULTS = 50.0
#: Percent of the looks at a main thread: it is what the program does.
_MOSTLY, _ALWAYS = 50, 95
#: The part of a GPU's memory up to which batches have room to grow.
_ROOM = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What samples showed of a job that hardly uses its GPUs."""

    #: For how long, in seconds.
    seconds: float
    #: Percent of that time in which each GPU was busy, by its name.
    gpu_mean: Mapping[str, float]
    #: The part of its GPUs' memory that is in use, of the fullest; None: not known.
    gpu_memory: float | None = None
    #: Whether some process has one of them open; None: not known.
    opened: bool | None = None
    #: How many of its processors were busy in the mean.
    cpus: float = 0.0
    #: Processes that a program has made of itself: workers of its loader.
    workers: int = 0
    #: Pages that were read from the disk again each second, and bytes that are swapped out.
    faults: float = 0.0
    swapped: int = 0
    #: Percent of the looks in which a program's main thread waited for a disk.
    disk: int = 0
    #: True: for half of that time it has neither computed nor said anything.
    still: bool = False
    #: True: it has loaded PyTorch, a build without CUDA.
    torch_without_cuda: bool = False
    stack: Stack | None = None
    #: True: a program was asked for its stack, and did not return to Python meanwhile.
    silent: bool = False
    session: bool = False


def low_use(look: Look, resources: Resources) -> Advised | None:
    """Return what to say of a job to its owner; None where its GPUs are used.

    A GPU counts as busy while a kernel runs on it, however small (nvmlDeviceGetUtilizationRates): one that is hardly busy by
    that measure is hardly used by any.
    """
    mean = sum(look.gpu_mean.values()) / len(look.gpu_mean) if look.gpu_mean else LOW
    if mean >= LOW:
        return None
    gpus = "Its GPU was" if len(look.gpu_mean) == 1 else f"Its {len(look.gpu_mean)} GPUs were"
    code, cause = _session(look, mean) if look.session else _cause(look, resources, mean)
    if not code:
        return None
    return Advised(code=code, message=f"{gpus} busy for {mean:.0f} % of {format_duration(round(look.seconds))}. {cause}")


def _session(look: Look, mean: float) -> tuple[str, str]:
    """A session computes when its owner does: only one that does nothing at all is told."""
    if mean >= UNUSED or look.cpus >= _NOTHING:
        return "", ""
    return "IdleReservation", (
        "The session has reserved them, and no cell has used them. End it, or open one without --reserve: its cells get a GPU "
        "when they run, and others have it in between."
    )


def _cause(look: Look, resources: Resources, mean: float) -> tuple[str, str]:
    cpus = resources.cpus * resources.nodes
    stack = look.stack
    if found := _unopened(look, mean) or _swapping(look, resources):
        return found
    if look.cpus < _IDLE and stack is not None and stack.waits_for is WaitsFor.NETWORK and stack.percent >= _MOSTLY:
        said = f"{stack.percent} % of the time in {stack.words}: it waits for the network."
        return "WaitsForNetwork", f"{said} Name the data as inputs of the task, which are fetched before it has a GPU."
    if look.still and mean < UNUSED and (look.silent or (stack and stack.percent >= _ALWAYS)):
        where = stack.words if stack is not None else "a call that does not return to Python"
        return "Stands", (
            f"It did nothing else either: no processor time, no output, and its main thread stands in {where}. It may be a "
            "deadlock: cancel it, or look into it (`carrel ssh`)."
        )
    if look.disk >= _MOSTLY:
        where = f" in {stack.words}" if stack is not None else ""
        return "WaitsForDisk", (
            f"Its main thread waits for the disk for {look.disk} % of the time{where}. "
            "Read larger pieces, or have workers read ahead; write checkpoints less often."
        )
    return _input(look, cpus) or _others(look, cpus, mean)


def _unopened(look: Look, mean: float) -> tuple[str, str] | None:
    if look.opened is False and mean < UNUSED:
        if look.torch_without_cuda:
            return "NoCudaInTorch", (
                "No process has opened it: PyTorch is a build without CUDA here. Install torch from PyPI, or from "
                "download.pytorch.org/whl/cu126 or the like; …/whl/cpu and versions with +cpu cannot see GPUs."
            )
        return "NeverOpened", (
            'No process has opened it. Does the program move its model there (`.to("cuda")`)? If it needs none, leave --gpus out.'
        )
    unused = sum(one < UNUSED for one in look.gpu_mean.values())
    if 0 < unused < len(look.gpu_mean):
        those = "One of them was" if unused == 1 else f"{unused} of them were"
        return "SomeUnused", f"{those} never used: does the program know that it has {len(look.gpu_mean)}?"
    return None


def _swapping(look: Look, resources: Resources) -> tuple[str, str] | None:
    if look.faults < _FAULTS:
        return None
    out = f", and {format_size(look.swapped)} are swapped out" if look.swapped >= GIB / 16 else ""
    return "Swapping", (
        f"It waits for memory: {look.faults:.0f} pages a second are read from the disk again (major faults){out}. "
        f"Ask for more than {format_size(resources.memory)} (`--memory`), or keep less in memory at once."
    )


def _input(look: Look, cpus: int) -> tuple[str, str] | None:
    stack = look.stack
    waits = stack is not None and stack.waits_for is WaitsFor.INPUT and stack.percent >= _MOSTLY
    if look.cpus >= _BUSY * cpus and (waits or stack is None):
        said = "The processor was" if cpus == 1 else f"All {cpus} processors were"
        where = f", {stack.percent} % of the time in {stack.words}" if stack is not None else ""
        return "SlowInput", f"{said} busy meanwhile{where}: input is too slow. Ask for more CPUs, or prepare the data once."
    free = max(0, cpus - max(ceil(look.cpus - 0.1), 1))
    if waits and stack is not None:
        has = f"{look.workers} worker process{'' if look.workers == 1 else 'es'}" if look.workers else "no worker processes"
        said = f"{stack.percent} % of the time in {stack.words}, {has}, {format_count(free, 'processor')} free"
        how = (
            f"try num_workers={_workers(look.workers, free, stack.percent)}"
            if free
            else "ask for more CPUs, or prepare data once"
        )
        return "FewWorkers", f"{said}: {how}."
    if stack is None and _BUSY <= look.cpus < 2:
        return "FewWorkers", (
            f"About one of its {cpus} processors was busy meanwhile: one process probably feeds the GPU. Give the loader workers "
            "(num_workers)."
        )
    return None


def _workers(workers: int, free: int, percent: int) -> int:
    """So many that the program would wait no more, if each does as much as one does now; as a power of two, where they fit."""
    wanted = ceil(max(1, workers) / max(0.05, 1 - percent / 100))
    return min(workers + free, max(workers + 1, 1 << (wanted - 1).bit_length()))


def _others(look: Look, cpus: int, mean: float) -> tuple[str, str]:
    where = f", most often in {look.stack.words}" if look.stack is not None else ""
    if look.cpus < _IDLE:
        waits = "it probably waits for files, for the network or for other processes"
        return "Idle", f"Its processors were idle, too{where}: {waits}."
    if mean < UNUSED and look.stack is not None:
        return "OnProcessors", (
            f"{look.cpus:.1f} of its {cpus} processors were busy instead{where}. "
            "Can that be done on the GPU, in worker processes, or once in a task without one?"
        )
    has_room = look.gpu_memory is not None and look.gpu_memory < _ROOM
    room = f" {100 * (look.gpu_memory or 0):.0f} % of its memory is in use:" if has_room else ""
    said = f"Its processors were not the limit{where}: steps"
    if look.stack is not None and look.stack.percent >= _MOSTLY:
        # One thread may be the limit while processors are free: what it does may be input, and larger batches no help.
        said = (
            f"Its main thread was in {look.stack.words} for {look.stack.percent} % of the time. If that prepares input, give it "
            "to worker processes, or do it once before; else steps"
        )
    return "SmallSteps", f"{said} are probably small for this GPU.{room} Try larger batches."
