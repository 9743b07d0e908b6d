"""Engines are found by entry points of the group `carrel.engines`; the name of one is what `carrel.toml` calls the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import REASONS
from carrel.core.domain.partition import LOCAL, Partition
from carrel.core.submission.installed import installed

if TYPE_CHECKING:
    from carrel.lab.server.engine import LabContext, LabEngine

GROUP = "carrel.engines"


class EngineFactory(Protocol):
    """What the entry point names: reads what `carrel.toml` says of a partition, and opens the engine for a lab.

    It may have `reasons`, too: a mapping from each reason code that only this engine gives to what it means, and what to do then.
    """

    #: What people call it, as in "a Slurm cluster".
    title: str
    #: Keys of a partition's table that are for this engine. They begin with its name.
    keys: Sequence[str]

    def read(self, name: str, table: Mapping[str, object], where: str) -> Partition:
        """Return the partition that `table`, found at `where`, describes to the engine. Raises `Invalid`, with the place."""

    def open(self, lab: LabContext) -> LabEngine:
        """Return the engine for a lab. Nothing of it runs yet."""


@cache
def factories() -> Mapping[str, EngineFactory]:
    """Return the engines that are installed, by name; the lab's own machine is the first."""
    found: dict[str, EngineFactory] = installed(GROUP)
    return {name: found[name] for name in sorted(found, key=lambda name: name != LOCAL)}


@cache
def reasons() -> Mapping[str, str]:
    """Return what each reason code means: the lab's own, and those of the engines that are installed.

    Raises `Invalid` for a code that two of them declare.
    """
    found = dict(REASONS)
    for name, factory in factories().items():
        own: Mapping[str, str] = getattr(factory, "reasons", {})
        if twice := sorted(found.keys() & own):
            raise Invalid(
                f'The engine "{name}" declares the reason "{twice[0]}", which means already: {found[twice[0]]}',
                remedy="Its package has to use another code.",
            )
        found |= own
    return found
