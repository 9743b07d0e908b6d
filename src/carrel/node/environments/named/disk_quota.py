"""How much room environments take, and what to say when there is none left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from carrel.core.domain.errors import StorageFull
from carrel.core.domain.units import format_size
from carrel.core.spool.trees import room_of
from carrel.node.environments.named.records import SITE, Layout, Place
from carrel.node.environments.records import write_text

#: Bytes that stay free on the disk: notebooks are saved there too, and Jupyter does not start without some.
RESERVE = 64 * 1024**2
#: Environments that a message names.
_NAMED = 5


@dataclass(slots=True)
class Counter:
    """Counts bytes on disk, each file once however many links it has."""

    _seen: set[tuple[int, int]] = field(default_factory=set)

    def add(self, path: Path) -> int:
        """Return the bytes of `path` and what is below it that were not counted yet."""
        return room_of(path, self._seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskQuota:
    """Limits. A full disk or quota is reported before anything is written, with what uses how much and how to free it."""

    layout: Layout
    #: Bytes of one owner's environments together, or None.
    quota: int | None = None
    #: Bytes that stay free.
    reserve: int = RESERVE

    def check(self, owner: str, report_name: str) -> None:
        """Raise `StorageFull` when `owner` has no room for `report_name`."""
        free = shutil.disk_usage(_existing(self.layout.root)).free
        if free < self.reserve:
            raise StorageFull(
                f"The disk with the environments is full ({format_size(free)} free), so {report_name} is not started. "
                f"{self._uses(owner)}",
                remedy="Free some: `carrel env remove NAME`, `carrel env gc`, `uv cache prune`, or files of your own.",
                details={"free": free},
            )
        if self.quota is None or owner == SITE:
            return
        used = sum(size for _, size in self.sizes(owner))
        if used >= self.quota:
            raise StorageFull(
                f"Your environments use {format_size(used)} of the {format_size(self.quota)} that this lab gives each user, "
                f"so {report_name} is not started. {self._uses(owner)}",
                remedy="Remove what you do not need: `carrel env remove NAME`; or ask an administrator for more.",
                details={"used": used, "quota": self.quota},
            )

    def sizes(self, owner: str) -> list[tuple[str, int]]:
        """Return name and bytes of each environment of an owner; a file in several of them counts for the first."""
        counter = Counter()
        return [(record.name, counter.add(place.directory)) for place, record in self.layout.of(owner)]

    def _uses(self, owner: str) -> str:
        sizes = sorted(self.sizes(owner), key=lambda item: -item[1])
        if not sizes:
            return "You have no environments of your own."
        told = [f"{name} {format_size(size)}" for name, size in sizes[:_NAMED]]
        told += [f"{len(sizes) - _NAMED} more {format_size(_sum(sizes[_NAMED:]))}"] if len(sizes) > _NAMED else []
        return f"Yours: {', '.join(told)}."


def remember_quota(layout: Layout, quota: int | None) -> None:
    """Keep the setting where runners find it."""
    if read_quota(layout) == quota:
        return
    layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_text(layout.quota, json.dumps({"quota": quota}))


def read_quota(layout: Layout) -> int | None:
    """Return the setting as the server left it."""
    try:
        quota = json.loads(layout.quota.read_bytes()).get("quota")
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return quota if isinstance(quota, int) else None


def size_of(place: Place) -> int:
    """Return the bytes of one environment."""
    return Counter().add(place.directory)


def _sum(sizes: Iterable[tuple[str, int]]) -> int:
    return sum(size for _, size in sizes)


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
