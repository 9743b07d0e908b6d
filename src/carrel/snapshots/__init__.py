"""Code travels as content-addressed snapshots: the same files give the same digest, on any machine, at any time.

`pack` makes one from a directory, `SnapshotStore` keeps them, `extract` makes a directory of one again.
"""

from carrel.snapshots.archive import Entry, Kind, manifest_digest
from carrel.snapshots.contents import SnapshotFiles
from carrel.snapshots.extraction import extract
from carrel.snapshots.git import git_state
from carrel.snapshots.packing import Packed, pack
from carrel.snapshots.store import SnapshotStore

__all__ = ["Entry", "Kind", "Packed", "SnapshotFiles", "SnapshotStore", "extract", "git_state", "manifest_digest", "pack"]
