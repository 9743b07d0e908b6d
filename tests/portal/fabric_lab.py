"""A lab whose machines are made from parts, with some that are there and one that waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway_lab import a_lab, serve
from portal_site import Clock, Site

from carrel.core.domain.composition import Composition, CompositionState
from carrel.core.domain.fabric import BlockKind, Wish
from carrel.core.domain.nouns import COMPOSITIONS
from carrel.core.domain.units import GIB
from carrel.lab.portal import Portal
from carrel.testing.waiting import wait_until

FABRIC = """
machines = 4

[[blocks]]
kind = "cpu"
name = "node{}"
count = 3
size = 32
memory = "256G"
zone = "east"
rack = "r1"

[[blocks]]
kind = "gpu"
name = "a100-{}"
count = 6
type = "a100"
size = "40G"
zone = "east"
rack = "r2"

[[blocks]]
kind = "gpu"
name = "vision-card"
type = "h100"
size = "80G"
zone = "east"
rack = "r2"
owner = "vision"
lent = "4h"

[[blocks]]
kind = "storage"
name = "nvme{}"
count = 3
type = "nvme"
size = "3.2T"
zone = "east"
rack = "r1"

[[blocks]]
kind = "gpu"
name = "spare"
type = "a100"
size = "40G"
zone = "east"
rack = "r2"
fault = "does not answer since Tuesday"

[[blocks]]
kind = "cpu"
name = "class-cpu"
size = 64
memory = "512G"
machine = "class"
zone = "east"
rack = "r3"

[[blocks]]
kind = "gpu"
name = "class-gpu{}"
count = 2
type = "a100"
size = "40G"
machine = "class"
slices = true
zone = "east"
rack = "r3"
"""


@dataclass(frozen=True)
class FabricLab:
    """What a test sees of it."""

    site: Site


def _gpus(count: int, **about: object) -> Wish:
    return Wish(kind=BlockKind.GPU, count=count, **about)  # type: ignore[arg-type]


@contextmanager
def a_lab_with_machines(place: Path, now: float) -> Iterator[FabricLab]:
    """Ada has two machines and waits for a third, Bob has slices."""
    clock = Clock()
    clock.stands = now
    portal = Portal(clock=clock)
    with (
        a_lab(place, pages=lambda _rig: portal, fabric=FABRIC, clock=clock, clock_of_work=clock) as rig,
        serve(rig.app) as url,
    ):
        drive = Wish(kind=BlockKind.STORAGE, type="nvme")
        for user, name, time, wishes in (
            ("ada", "protein folding", 4, (_gpus(4, type="a100"), drive)),
            ("bob", "lesson", 2, (_gpus(2, sliced=True, profile="1g.5gb"), _gpus(1, sliced=True, profile="2g.10gb"))),
            ("ada", "evaluation", 1, (_gpus(1, sliced=True, size=10 * GIB),)),
            ("ada", "ablation", 8, (_gpus(4, type="a100"),)),
        ):
            asked = Composition(name=name, time=time * 3600, wishes=wishes)
            _, made = rig.lab.keeper(COMPOSITIONS).put(rig.caller(user), asked)
            wanted = CompositionState.PENDING if name == "ablation" else CompositionState.RUNNING
            wait_until(
                lambda made=made, wanted=wanted: rig.lab.keeper(COMPOSITIONS).get(rig.caller("root"), made.id).state is wanted
            )
        yield FabricLab(Site(rig, portal, clock, url))
