"""Engines are found by entry points of the group `carrel.engines`; the name of one is what `carrel.toml` calls the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

from carrel.core.domain.partition import LOCAL, Partition
from carrel.core.submission.installed import installed

if TYPE_CHECKING:
    from carrel.lab.server.engine import LabContext, LabEngine

GROUP = "carrel.engines"


class EngineFactory(Protocol):
    """What the entry point names: reads what `carrel.toml` says of a partition, and opens the engine for a lab."""

    #: What people call it, as in "a Slurm cluster".
    title: str
    #: Keys of a partition's table that are for this engine. They begin with its name.
    keys: Sequence[str]

    def read(self, name: str, table: Mapping[str, object], where: str) -> Partition:
        """Return the partition that `table`, found at `where`, describes to the engine. Raises `Invalid`, with the place."""
        ...

    def open(self, lab: LabContext) -> LabEngine:
        """Return the engine for a lab. Nothing of it runs yet."""
        ...


@cache
def factories() -> Mapping[str, EngineFactory]:
    """Return the engines that are installed, by name; the lab's own machine is the first."""
    found: dict[str, EngineFactory] = installed(GROUP)
    return {name: found[name] for name in sorted(found, key=lambda name: name != LOCAL)}
