"""Code travels as content-addressed snapshots: the same files give the same digest, on any machine, at any time.

`pack` makes one from a directory, `SnapshotStore` keeps them, `extract` makes a directory of one again. Each part is loaded
when it is first used: a runner that only extracts starts sooner.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carrel.core.snapshots.archive import Entry, Kind, manifest_digest
    from carrel.core.snapshots.contents import SnapshotFiles
    from carrel.core.snapshots.extraction import extract
    from carrel.core.snapshots.git import git_state
    from carrel.core.snapshots.packing import Packed, never_travels, pack
    from carrel.core.snapshots.store import SnapshotStore

__all__ = [
    "Entry",
    "Kind",
    "Packed",
    "SnapshotFiles",
    "SnapshotStore",
    "extract",
    "git_state",
    "manifest_digest",
    "never_travels",
    "pack",
]

_FROM = {
    "Entry": "archive",
    "Kind": "archive",
    "manifest_digest": "archive",
    "SnapshotFiles": "contents",
    "extract": "extraction",
    "git_state": "git",
    "Packed": "packing",
    "never_travels": "packing",
    "pack": "packing",
    "SnapshotStore": "store",
}


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(import_module(f"carrel.core.snapshots.{_FROM[name]}"), name)
    raise AttributeError(f"module 'carrel.core.snapshots' has no attribute {name!r}")
