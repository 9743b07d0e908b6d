"""Removing files that others may begin to use at any moment.

A process that uses a content that is there already sets its time (`keep` of a blob, `has` of a snapshot). A collector takes the
file away under another name, looks at its time again, and puts it back when somebody has used it meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def remove_unused(path: Path, before: float) -> bool:
    """Remove a file that was last used before that Unix time; return whether it went. One that was used since then stays."""
    try:
        if path.stat().st_mtime >= before:
            return False
        away = path.with_name(f".{path.name}.removed")
        path.rename(away)
    except FileNotFoundError:
        return False
    if away.stat().st_mtime >= before:
        # It may be there anew: then both are the same content.
        away.rename(path)
        return False
    away.unlink()
    return True


def remove_tree(path: Path) -> None:
    """Remove a directory that nobody uses; what interrupts this leaves it under another name, for the next time."""
    away = path.with_name(f".{path.name}.removed")
    with suppress(FileNotFoundError):
        if not away.exists():
            path.rename(away)
        _open_up(away)
        shutil.rmtree(away)


def leftovers(place: Path) -> Iterator[Path]:
    """Yield what interrupted removals left in a directory."""
    yield from sorted(path for path in place.glob(".*.removed") if not path.is_symlink())


def size_of(path: Path) -> int:
    """Return the bytes that a file, or all below a directory, take on the disk; links are not followed."""
    total = _room(path)
    for where, directories, names in os.walk(path):
        total += sum(_room(Path(where, name)) for name in (*directories, *names))
    return total


def _room(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _open_up(path: Path) -> None:
    """A job may have taken its owner's right to empty a directory."""
    for where, directories, _ in os.walk(path):
        for name in directories:
            inner = Path(where, name)
            if not inner.is_symlink():
                with suppress(OSError):
                    inner.chmod(0o700)
