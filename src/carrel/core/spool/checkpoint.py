"""Whether an attempt has got on: whether what its job keeps from one attempt to the next is another than before it."""

from __future__ import annotations

import os
from pathlib import Path

from carrel.core.spool.layout import AttemptDirectory
from carrel.core.spool.trees import entries_below


def note_checkpoint(directory: AttemptDirectory) -> None:
    """Write down how the checkpoint directory is before the command starts."""
    directory.checkpoint_before.write_text(_state(directory.checkpoint))


def wrote_checkpoint(directory: AttemptDirectory) -> bool:
    """Return whether the directory has changed since `note_checkpoint`. It has not where that was never called."""
    try:
        before = directory.checkpoint_before.read_text()
    except OSError:
        return False
    return _state(directory.checkpoint) != before


def _state(root: Path) -> str:
    """Return a digest of the names, sizes and times of all files below `root`; what vanishes meanwhile counts as not there."""
    import hashlib

    found = []
    for entry in entries_below(root):
        if not entry.is_directory:
            about, place = entry.about, os.fstat(entry.within).st_ino
            line = f"{place}\0{entry.name}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ino}"
            found.append(hashlib.sha256(line.encode(errors="surrogateescape")).digest())
    return hashlib.sha256(b"".join(sorted(found))).hexdigest()
