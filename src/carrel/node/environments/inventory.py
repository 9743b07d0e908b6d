"""What environments there are, and removing those that nobody uses."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.task import EnvironmentKind
from carrel.core.spool.trees import remove_tree as clear_tree
from carrel.core.spool.trees import room_of
from carrel.node.environments.guards import try_exclusive
from carrel.node.environments.records import IMAGE_ABOUT, Layout, Marker, read_lock, read_marker

#: Seconds after which scratch space belongs to a preparation that was killed.
_ABANDONED = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentInfo:
    """One environment on disk."""

    #: "sha256:…"; for a half-built one only the name of its directory.
    digest: str
    #: False for what a killed builder left behind.
    complete: bool
    path: Path
    #: Bytes on disk. Files that uv's cache shares (hard links) are counted: removing the environment frees less then.
    size: int
    #: Unix seconds.
    created: float
    last_used: float
    #: "name==version", sorted.
    packages: tuple[str, ...]
    #: Implementation and exact version ("cpython-3.11.7").
    python: str


def list_environments(layout: Layout) -> list[EnvironmentInfo]:
    """Return every environment, the least recently used first."""
    return sorted((_describe(layout, path) for path in _directories(layout.environments)), key=lambda info: info.last_used)


def collect_environments(
    layout: Layout, *, unused_for: float, keep: frozenset[str], now: float, dry_run: bool
) -> list[EnvironmentInfo]:
    """Remove environments unused for `unused_for` seconds at `now` (Unix seconds), but none in `keep` and none in use.

    What killed builders left goes too. Returns what was removed, or with `dry_run` would be.
    """
    removed = []
    for info in list_environments(layout):
        guard = layout.guards / info.path.name
        if info.digest in keep or (info.complete and not _is_old(guard, info, unused_for, now)):
            continue
        hold = try_exclusive(guard)
        if hold is None:
            continue
        with hold:
            # It may have been used between the look and the lock.
            if info.complete and not _is_old(guard, info, unused_for, now):
                continue
            removed.append(info)
            if not dry_run:
                _discard(layout, info.path)
                guard.unlink(missing_ok=True)
    if not dry_run:
        _sweep(layout, unused_for, now)
    return removed


def trim_images(layout: Layout, most: int, keep: str) -> list[Path]:
    """Remove images that nobody uses, those used longest ago first, until all take `most` bytes or less; but not that of `keep`.

    Returns what was removed. How large an image is was written down when it was unpacked.
    """
    found = []
    for path in _directories(layout.environments):
        marker = read_marker(path)
        if marker is not None and marker.kind == EnvironmentKind.IMAGE:
            found.append((_used(layout, path, marker.created), marker.digest, path, _size_of_image(path)))
    total, removed = sum(size for *_, size in found), []
    for used, digest, path, size in sorted(found):
        if total <= most:
            break
        hold = try_exclusive(layout.guards / path.name) if digest != keep else None
        if hold is None:
            continue
        with hold:
            if _used(layout, path, used) != used:  # meanwhile somebody else has
                continue
            _discard(layout, path)
        total -= size
        removed.append(path)
    return removed


def _used(layout: Layout, path: Path, otherwise: float) -> float:
    try:
        return (layout.guards / path.name).stat().st_mtime
    except FileNotFoundError:
        return otherwise


def _size_of_image(path: Path) -> int:
    try:
        return int(json.loads((path / IMAGE_ABOUT).read_bytes())["size"])
    except (OSError, ValueError, LookupError, TypeError):  # it is damaged
        return room_of(path)


def _sweep(layout: Layout, unused_for: float, now: float) -> None:
    """Remove what no environment needs: trash, abandoned scratch space, and locks that nobody used for so long."""
    for path in _directories(layout.trash):
        clear_tree(path)
    for path in _directories(layout.work):
        if now - path.stat().st_mtime > _ABANDONED:
            clear_tree(path)
    for path in layout.locks.glob("*.json"):
        entry = read_lock(path)
        gone = entry is None or not layout.environment(entry.environment).exists()
        if gone and now - path.stat().st_mtime >= unused_for:
            path.unlink(missing_ok=True)
    for guard in sorted(layout.guards.iterdir()):
        used = layout.locks / f"{guard.name}.json", layout.environments / guard.name
        if any(path.exists() for path in used) or now - guard.stat().st_mtime < unused_for:
            continue
        hold = try_exclusive(guard)
        if hold is not None:
            with hold:
                guard.unlink(missing_ok=True)


def remove_tree(layout: Layout, path: Path) -> None:
    """Make `path` vanish at once, then free its space; a removal that is interrupted is finished by the collector."""
    if path.exists():
        _discard(layout, path)


def _discard(layout: Layout, path: Path) -> None:
    grave = layout.trash / f"{path.name}.{uuid.uuid4().hex}"
    path.rename(grave)
    clear_tree(grave)


def _is_old(guard: Path, info: EnvironmentInfo, unused_for: float, now: float) -> bool:
    try:
        used = guard.stat().st_mtime
    except FileNotFoundError:
        used = info.created
    return now - used >= unused_for


def _describe(layout: Layout, path: Path) -> EnvironmentInfo:
    marker: Marker | None = read_marker(path)
    changed = path.stat().st_mtime
    used = _used(layout, path, changed)
    return EnvironmentInfo(
        digest=marker.digest if marker else path.name,
        complete=marker is not None,
        path=path,
        size=room_of(path),
        created=marker.created if marker else changed,
        last_used=used,
        packages=marker.packages if marker else (),
        python=marker.python if marker else "",
    )


def _directories(parent: Path) -> Iterator[Path]:
    if parent.is_dir():
        yield from sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
