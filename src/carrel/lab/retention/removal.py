"""Removing files that others may begin to use at any moment.

A process that uses a content that is there already sets its time (`keep` of a blob, `has` of a snapshot). A collector takes the
file away under another name, looks at its time again, and puts it back when somebody has used it meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from carrel.core.spool import trees


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
        trees.remove_tree(away)


def leftovers(place: Path) -> Iterator[Path]:
    """Yield what interrupted removals left in a directory."""
    yield from sorted(path for path in place.glob(".*.removed") if not path.is_symlink())
