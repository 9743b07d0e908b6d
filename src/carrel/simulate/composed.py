"""How many GPUs machines from parts save at equal waits: nodes as they stand beside one pool, with slices and without.

The lab's own scheduler runs each layout. A pool is what a fabric makes possible at best: any of its GPUs can be in one machine. A
job on one has its GPUs for some seconds more, in which its machine is made, and these count as waiting. Slices lie on GPUs that
are cut into seven for good, so what a layout needs that is changed for each job is no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, fsum
from random import Random

from carrel.core.domain.errors import Invalid
from carrel.core.domain.node import Device, Node
from carrel.core.domain.rules import LabRules
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import CPUS_PER_GPU, GPU_MEMORY, MEMORY_PER_GPU
from carrel.simulate.measures import Spread, spread
from carrel.simulate.trace import Trace

#: Seconds in which a machine is made, where nothing else is said. It was not measured on any fabric.
ATTACH_SECONDS = 60.0
#: Slices of a GPU that is cut.
SLICES = 7
WHOLE, SLICE = "whole", "slice"
#: How many GPUs are cut, as far as it is tried: so many times as many as their jobs would keep busy.
_CUT = (1, 1.5, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutMeasures:
    """What one layout needs."""

    layout: str
    #: The fewest GPUs with which nobody waits for longer than on the machines as they are, by mean and p95; of them so many cut.
    gpus: int
    cut: int
    #: With the time in which machines are made.
    wait_seconds: Spread
    #: As part of the GPUs that there are.
    saved: float


def compare_layouts(
    trace: Trace,
    nodes: Sequence[Node],
    rules: LabRules,
    *,
    small: float,
    attach: float = ATTACH_SECONDS,
    progress: Callable[[str, float], None] = lambda _what, _done: None,
) -> Sequence[LayoutMeasures]:
    """Return what the machines as they are do, and what each other layout needs for the same.

    `small`: the part of jobs on one GPU for which a seventh would do, and which take no longer there; which they are is drawn by
    their numbers. `attach`: seconds in which a machine is made. Raises `Invalid` where nothing runs.
    """
    gpus, per_node = sum(len(node.devices) for node in nodes), max((len(node.devices) for node in nodes), default=0)
    if not gpus or not any(job.gpus for job in trace.jobs):
        raise Invalid(f"{trace.name} on {gpus} GPUs: nothing runs that could be laid out otherwise.", remedy="Name other work.")
    study = _Study(trace, rules, per_node, small, attach)
    as_is = study.waits(gpus, 0, pooled=False)
    assert as_is is not None
    found = [LayoutMeasures(layout="nodes", gpus=gpus, cut=0, wait_seconds=as_is, saved=0.0)]
    layouts = (("nodes, slices", False, True), ("pool", True, False), ("pool, slices", True, True))
    for number, (title, pooled, cuts) in enumerate(layouts):
        if cuts and not small:
            continue
        progress(title, number / len(layouts))
        fewest, cut, waits = study.fewest(gpus, as_is, pooled=pooled, cuts=cuts)
        found.append(LayoutMeasures(layout=title, gpus=fewest, cut=cut, wait_seconds=waits, saved=1 - fewest / gpus))
    return found


class _Study:
    def __init__(self, trace: Trace, rules: LabRules, per_node: int, small: float, attach: float) -> None:
        self._trace, self._rules, self._per_node, self._attach = trace, rules, per_node, attach
        self._small = {job.id for job in trace.jobs if job.gpus == 1 and Random(job.id).random() < small}
        #: The part of all GPUs that small jobs would keep busy.
        in_all = fsum(job.duration * job.gpus for job in trace.jobs) or 1.0
        self._busy = fsum(job.duration for job in trace.jobs if job.id in self._small) / SLICES / in_all

    def fewest(self, gpus: int, least: Spread, *, pooled: bool, cuts: bool) -> tuple[int, int, Spread]:
        """The fewest GPUs with which waits are no longer than `least`, how many of them are cut, and the waits; all `gpus` do."""
        best = (gpus, 0, least)
        low, high = 1, gpus
        while low <= high:
            middle = (low + high) // 2
            wanted = [max(1, ceil(middle * self._busy * times)) for times in _CUT] if cuts else [0]
            tried = [cut for cut in dict.fromkeys(wanted) if cut < middle]
            found = next(
                (
                    (middle, cut, waits)
                    for cut in tried
                    if (waits := self.waits(middle, cut, pooled=pooled)) and _as_good(waits, least)
                ),
                None,
            )
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle - 1
        return best

    def waits(self, gpus: int, cut: int, *, pooled: bool) -> Spread | None:
        """How long jobs wait on so many GPUs; None where some could never run."""
        attach = self._attach if pooled else 0.0
        jobs = [
            replace(
                job,
                duration=job.duration + attach,
                time=None if job.time is None else job.time + int(attach),
                gpu_type=(SLICE if cut and job.id in self._small else WHOLE) if job.gpus else None,
            )
            for job in self._trace.jobs
        ]
        outcome = simulate_lab(
            self._rules, replace(self._trace, jobs=jobs), layout(gpus, cut, gpus if pooled else self._per_node)
        )
        waits = spread([run.wait + attach for run in outcome.runs])
        return None if outcome.refused else waits


def layout(gpus: int, cut: int, per_node: int) -> tuple[Node, ...]:
    """Return so many GPUs on nodes of `per_node`, of which the last `cut` are slices."""
    found = []
    for first in range(0, gpus, per_node):
        numbers = range(first, min(first + per_node, gpus))
        devices = [(f"{number}", WHOLE) for number in numbers if number < gpus - cut]
        devices += [(f"{number}-{part}", SLICE) for number in numbers if number >= gpus - cut for part in range(SLICES)]
        found.append(
            Node(
                name=f"node{first:05}",
                cpus=per_node * CPUS_PER_GPU,
                memory=per_node * MEMORY_PER_GPU,
                devices=tuple(
                    Device(uuid=f"SIM-{name}", index=index, type=kind, name=kind, memory=GPU_MEMORY, simulated=True)
                    for index, (name, kind) in enumerate(devices)
                ),
            )
        )
    return tuple(found)


def _as_good(waits: Spread, least: Spread) -> bool:
    return waits.mean <= least.mean and waits.p95 <= least.p95
