"""Elements of one of the lab's arrays that go to Slurm together, as one array of Slurm's.

An array has one comment, so that names the array alone: ``carrel.LAB.array.WORD``. Which attempt each of its elements is was
written down before Slurm heard of it: in a directory of that name, in which the index of each element is a link to the attempt's
directory. The batch script finds its attempt there by SLURM_ARRAY_TASK_ID. Each attempt says which array it was given to.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from carrel.core.domain.ports import Clock
from carrel.engines.attempts import Key
from carrel.engines.slurm.followed import Followed

#: Seconds for which an element waits for another one that the lab has said will follow at once.
_FOLLOWS = 2.0


def may_join(followed: Followed) -> bool:
    """Return whether the attempt may be an element of an array of Slurm's: one that Slurm had already is submitted by itself."""
    launch = followed.watched.launch
    apart = followed.own or followed.held or followed.batch_only or followed.again or followed.avoid
    return launch.element is not None and not apart


def write_array(lab: str, elements: Sequence[Followed]) -> str:
    """Write down which attempts a new array is made of, and return the array's identity."""
    name = f"carrel.{lab}.array.{secrets.token_hex(6)}"
    directory = elements[0].directory.path.parents[1] / name
    directory.mkdir(mode=0o700)
    for followed in elements:
        (directory / f"{index_of(followed)}").symlink_to(followed.directory.path)
    for followed in elements:
        followed.join(name)
    return name


def leave_array(followed: Followed) -> None:
    """The attempt is no element any more; the last one takes the directory with it."""
    with suppress(OSError):
        (followed.array_directory / f"{index_of(followed)}").unlink(missing_ok=True)
        followed.array_directory.rmdir()


def sweep_arrays(lab: str, spool: Path) -> None:
    """Remove what was written down of arrays whose attempts are gone."""
    for directory in spool.glob(f"carrel.{lab}.array.*"):
        with suppress(OSError):
            for link in directory.iterdir():
                if not link.exists():
                    link.unlink()
            directory.rmdir()


def index_of(followed: Followed) -> int:
    """Return which element the attempt is."""
    element = followed.watched.launch.element
    assert element is not None
    return element.index


@dataclass(slots=True)
class _Group:
    elements: dict[Key, Followed] = field(default_factory=dict)
    #: When it is whole, in monotonic seconds.
    at: float = -math.inf


class Gathering:
    """Elements on their way to Slurm, by the lab's array. One thread uses it."""

    def __init__(self, monotonic: Clock) -> None:
        self._monotonic = monotonic
        self._groups: dict[int, _Group] = {}

    def add(self, followed: Followed) -> None:
        """Take up an element. It waits for no others but those that the lab has said will follow at once."""
        launch = followed.watched.launch
        assert launch.element is not None
        group = self._groups.setdefault(launch.element.array_id, _Group())
        if followed.cancelled or not launch.more_elements:
            group.at = -math.inf
        elif followed.watched.key not in group.elements:  # who is looked at again postpones nothing
            group.at = self._monotonic() + _FOLLOWS
        group.elements[followed.watched.key] = followed

    def next_at(self) -> float | None:
        """Return when a group will be whole, in monotonic seconds; None while there is none."""
        return min((group.at for group in self._groups.values()), default=None)

    def take(self) -> list[Followed]:
        """Return the elements of a group that is whole, in order; none where there is none."""
        for number, group in self._groups.items():
            if group.at <= self._monotonic():
                del self._groups[number]
                return sorted(group.elements.values(), key=lambda followed: followed.watched.key)
        return []


class Pieces:
    """Into how large pieces a line is cut of which Slurm takes so many and no more: each answer halves the doubt."""

    def __init__(self, size: int) -> None:
        self._left = size
        #: So many at once are known to be too many.
        self._too_many = math.inf

    def next(self) -> int:
        """Return how many to try now; 0 when all were taken, or Slurm has no room for one more."""
        if self._left == 0 or self._too_many <= 1:
            return 0
        return min(self._left, int(self._too_many) // 2) if self._too_many < math.inf else self._left

    def taken(self, size: int) -> None:
        """Slurm took as many."""
        self._left -= size
        self._too_many -= size

    def refused(self, size: int) -> None:
        """As many were too many."""
        self._too_many = size
