"""Code travels as content-addressed snapshots: the same files give the same digest, on any machine, at any time.

`pack` makes one from a directory, `SnapshotStore` keeps them, `extract` makes a directory of one again. Each part is loaded
when it is first used: a runner that only extracts starts sooner.
"""

from typing import TYPE_CHECKING

from carrel.core.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from carrel.core.snapshots.archive import Entry, Kind, manifest_digest
    from carrel.core.snapshots.contents import SnapshotFiles
    from carrel.core.snapshots.extraction import extract
    from carrel.core.snapshots.git import git_state
    from carrel.core.snapshots.packing import Packed, never_travels, pack
    from carrel.core.snapshots.store import SnapshotStore
else:
    __getattr__, __dir__ = lazy_imports(__name__)
