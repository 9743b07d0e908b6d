"""How long it takes to plan a machine on a fabric of 10,000 blocks: `python benchmarks/composing.py`.

20 zones, each with 100 blocks of processors, 190 GPUs, 120 drives and 10 hosts of 8 GPUs that are cut into slices, a third of
all in use. Measured is processor time of `carrel.core.policy.compose`, the median of seven plans; what cannot be had now and
when it can is worked out as well, as for a user who waits.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from time import process_time

from carrel.core.domain.fabric import Block, BlockKind, Together, Wish
from carrel.core.domain.units import GIB
from carrel.core.policy.compose import plan
from carrel.core.policy.free_blocks import Asked
from carrel.core.policy.machine_line import Use, line
from carrel.engines.fabric.profiles import COMPUTE, MEMORY, slice_profiles
from figure import Figure

TIMES = 7
SIZE = 80 * GIB


def a_fabric() -> list[Block]:
    """The blocks."""
    found = []
    for zone in (f"z{number}" for number in range(20)):
        about = {"zone": zone}
        found += [Block(name=f"{zone}-cpu{n}", kind=BlockKind.CPU, size=32, **about) for n in range(100)]
        places = [{"island": f"{zone}-{n // 8}", "rack": f"r{n % 9}", "name": f"{zone}-gpu{n}"} for n in range(190)]
        found += [Block(kind=BlockKind.GPU, type="h100", size=SIZE, **place, **about) for place in places]
        drives = [f"{zone}-nvme{n}" for n in range(120)]
        found += [Block(name=name, kind=BlockKind.STORAGE, type="nvme", size=4000 * GIB, **about) for name in drives]
        for host in (f"{zone}-h{n}" for n in range(10)):
            found.append(Block(name=f"{host}-cpu", kind=BlockKind.CPU, size=64, fixed=True, machine=host, **about))
            found += [
                Block(
                    name=f"{host}-gpu{n}",
                    kind=BlockKind.GPU,
                    type="h100",
                    size=SIZE,
                    fixed=True,
                    machine=host,
                    profiles=slice_profiles(SIZE),
                    compute_slices=COMPUTE,
                    memory_slices=MEMORY,
                    **about,
                )
                for n in range(8)
            ]
    return found


def figures() -> Iterator[Figure]:
    """A figure for each wish, and one for the moment at which it can be had."""
    blocks = a_fabric()
    taken = frozenset(random.Random(1).sample([block.name for block in blocks], len(blocks) // 3))
    gpu = BlockKind.GPU
    wishes = {
        "4 GPUs, 2 drives": (Wish(kind=gpu, count=4), Wish(kind=BlockKind.STORAGE, count=2)),
        "8 GPUs of one island": (Wish(kind=gpu, count=8, together=Together.ISLAND),),
        "16 GPUs over racks": (Wish(kind=gpu, count=16, together=Together.SPREAD),),
        "a slice of 10G": (Wish(kind=gpu, sliced=True, size=10 * GIB),),
        "7 slices of 20G": (Wish(kind=gpu, sliced=True, size=20 * GIB, count=7),),
        "150 GPUs (not now)": (Wish(kind=gpu, count=150),),
        "500 GPUs (never)": (Wish(kind=gpu, count=500),),
    }
    for title, wish in wishes.items():
        asked = Asked(wishes=wish, machine="c1")
        yield _median(f"plan of {len(blocks)} blocks: {title}", lambda asked=asked: plan(blocks, asked, taken=taken))
    uses = [Use(names=frozenset(sorted(taken)[number::100]), until=float(number)) for number in range(100)]
    waits = Asked(wishes=wishes["150 GPUs (not now)"], machine="c1", time=3600)
    yield _median("when, of 100 machines: 150 GPUs", lambda: line(blocks, [waits], uses, 0.0))
    small = Asked(wishes=wishes["4 GPUs, 2 drives"], machine="c2", time=60)
    yield _median("50 in line behind that", lambda: line(blocks, [waits, *[small] * 50], uses, 0.0), at_most=None)


def _median(name: str, of: Callable[[], object], at_most: float | None = 1.0) -> Figure:
    taken = []
    for _ in range(TIMES):
        begin = process_time()
        of()
        taken.append(process_time() - begin)
    spread = f"{min(taken):.3f} to {max(taken):.3f}"
    return Figure(name=name, value=statistics.median(taken), unit="s", spread=spread, at_most=at_most)


if __name__ == "__main__":
    for figure in figures():
        print(figure.row())
