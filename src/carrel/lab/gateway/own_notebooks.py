"""Notebooks among a user's own files on the lab's machine, where their sessions work: found, and copied to be run as a task."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.units import MIB, format_size
from carrel.core.domain.user import Caller, directory_name
from carrel.core.spool.trees import Entry, entries_below

#: Directories inside each other and entries that are looked at, and notebooks that are offered.
_DEEP, _ENTRIES, _OFFERED = 6, 20_000, 12
#: Bytes of one.
_LONGEST = 64 * MIB
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNotebook:
    """A notebook of a user's."""

    #: Below the user's directory.
    path: str
    size: int
    #: Unix seconds.
    changed: float


def own_notebooks(files: Path, caller: Caller) -> Sequence[OwnNotebook]:
    """Return the caller's notebooks that were changed last, newest first. `files` has a directory for each user."""
    found = [
        OwnNotebook(path=entry.path, size=entry.about.st_size, changed=entry.about.st_mtime)
        for entry in _notebooks(files / directory_name(caller.user.subject))
    ]
    return sorted(found, key=lambda one: one.changed, reverse=True)[:_OFFERED]


def copy_notebook(files: Path, caller: Caller, path: str, target: Path) -> None:
    """Copy the notebook at `path` below the caller's directory. Raises `NotFound`, and `Invalid` for one that is too large."""
    data = None
    with suppress(OSError):  # it, or what is in its place by now, cannot be read
        for entry in _notebooks(files / directory_name(caller.user.subject)):
            if entry.path == path:
                descriptor = os.open(entry.name, _READ, dir_fd=entry.within)
                with open(descriptor, "rb") as source:
                    data = source.read(_LONGEST + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
                break
    if data is None:
        raise NotFound(f'There is no notebook "{path[:200]}" among your files.', remedy="Choose one on the page Notebooks.")
    if len(data) > _LONGEST:
        raise Invalid(f"The notebook has more than {format_size(_LONGEST)}.", remedy="Clear its outputs first.")
    target.write_bytes(data)


def _notebooks(below: Path) -> Iterator[Entry]:
    """The notebooks, as far as is looked. Nothing is reached through a link, and hidden directories have none of the user's."""
    looked = 0

    def enter(entry: Entry) -> bool:
        nonlocal looked
        looked += 1
        return looked < _ENTRIES and len(entry.way) < _DEEP and not entry.name.startswith(".")

    for entry in islice(entries_below(below, enter=enter), _ENTRIES):
        if stat.S_ISREG(entry.about.st_mode) and entry.name.endswith(".ipynb") and entry.path.isprintable():
            yield entry
