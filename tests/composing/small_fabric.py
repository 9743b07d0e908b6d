"""A small fabric for tests, and a lab that composes on it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from carrel.core.control.composing import Composer, Fabric
from carrel.core.domain.composition import Composition, CompositionState
from carrel.core.domain.fabric import Block, BlockKind, Wish
from carrel.core.domain.units import GIB
from carrel.engines.fabric.profiles import COMPUTE, MEMORY, slice_profiles


def gpus(count: int, *, zone: str = "east", type: str = "a100", **about: Any) -> list[Block]:
    """GPUs that can be attached, in islands of two."""
    return [
        Block(
            name=f"{zone}-{type}-{number}",
            kind=BlockKind.GPU,
            zone=zone,
            type=type,
            size=40 * GIB,
            island=f"{zone}-{number // 2}",
            rack=f"r{number % 3}",
            **about,
        )
        for number in range(count)
    ]


def blocks(kind: BlockKind, count: int, *, zone: str = "east", **about: Any) -> list[Block]:
    """Blocks of another kind."""
    return [Block(name=f"{zone}-{kind.value}-{number}", kind=kind, zone=zone, size=32, **about) for number in range(count)]


def host(name: str, count: int, *, zone: str = "east", memory: int = 40 * GIB) -> list[Block]:
    """A machine that stands already, with GPUs that can be cut."""
    about: dict[str, Any] = {"zone": zone, "machine": name, "fixed": True}
    cpu = Block(name=f"{name}-cpu", kind=BlockKind.CPU, size=64, memory=512 * GIB, **about)
    cut: dict[str, Any] = {"profiles": slice_profiles(memory), "compute_slices": COMPUTE, "memory_slices": MEMORY}
    return [
        cpu,
        *(Block(name=f"{name}-gpu{n}", kind=BlockKind.GPU, type="a100", size=memory, **cut, **about) for n in range(count)),
    ]


def wish(text: str) -> tuple[Wish, ...]:
    """ "2 gpu", "1 gpu a100", "3 slice 1g.5gb", "1 storage", with commas between."""
    found = []
    for part in text.split(","):
        count, kind, *rest = part.split()
        if kind == "slice":
            found.append(Wish(kind=BlockKind.GPU, count=int(count), sliced=True, profile=rest[0]))
        else:
            found.append(Wish(kind=BlockKind(kind), count=int(count), type=rest[0] if rest else ""))
    return tuple(found)


class Kept:
    """Compositions in memory: `RecordStore` without a database. They outlive the composer, as a database does."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._all: dict[int, Composition] = {}
        self._known: dict[Any, Sequence[Composition]] = {}

    def put(self, value: Composition) -> Composition:
        value = value if value.id else replace(value, id=next(self._numbers))
        self._all[value.id] = value
        self._known.clear()
        return value

    def get(self, *key: Any) -> Composition | None:
        return self._all.get(key[0])

    def remove(self, *key: Any) -> bool:
        found = self._all.pop(key[0], None)
        self._known.clear()
        return found is not None

    def all(self, **equal: Any) -> Sequence[Composition]:
        known = self._known.get(tuple(equal.items()))
        if known is None:
            known = self._known[tuple(equal.items())] = self.select(**equal)
        return known

    def select(self, **equal: Any) -> Sequence[Composition]:
        values = {name: value if isinstance(value, tuple) else (value,) for name, value in equal.items()}
        return [one for one in self._all.values() if all(getattr(one, name) in value for name, value in values.items())]


@dataclass
class SmallLab:
    """A composer with a clock that a test turns."""

    fabric: Fabric
    records: Kept = field(default_factory=Kept)
    now: float = 1000.0
    fence: int = 0
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.start_again()

    def start_again(self) -> None:
        """The lab was killed and is started anew: only the records and the fabric are left."""
        self.fence += 1
        self.composer = Composer(
            fabric=self.fabric, records=self.records, clock=lambda: self.now, fence=self.fence, used=self.used.__contains__
        )

    def ask(self, text: str, *, time: int = 3600, **about: Any) -> int:
        """Ask for a machine."""
        return self.ask_for(*wish(text), time=time, **about)

    def ask_for(self, *wishes: Wish, time: int = 3600, **about: Any) -> int:
        """The same with other wishes."""
        return self.records.put(Composition(wishes=wishes, time=time, owner="ada", submitted=self.now, **about)).id

    def settle(self, turns: int = 1000) -> None:
        """Turn until nothing is done any more."""
        for _ in range(turns):
            if not self.composer.turn():
                return
        raise AssertionError("The composer does not come to rest.")

    def one(self, number: int) -> Composition:
        """A composition as it is kept."""
        found = self.records.get(number)
        assert found is not None
        return found

    def state(self, number: int) -> CompositionState:
        """Its state."""
        return self.one(number).state

    def machine(self, number: int) -> set[str]:
        """The blocks that the fabric has in its machine."""
        return {block.name for block in self.fabric.blocks() if block.machine.split("-")[0] == f"c{number}"}


def in_file(path: Path) -> Path:
    """Where a simulated fabric of a test keeps what is."""
    return path / "fabric.json"
