"""Where the lab keeps what is too large for the database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from carrel.core.domain.errors import NotFound
from carrel.core.spool import Spool
from carrel.core.spool.foreign import is_digest, read_regular

#: Bytes of the lock of an environment; those of the largest images and environments have some 100 kB.
_LONGEST_LOCK = 16 * 1024**2


class CodeStore(Protocol):
    """Code snapshots by digest; `carrel.core.snapshots.SnapshotStore` is one, and has the promises."""

    def has(self, digest: str) -> bool: ...
    def add(self, digest: str, stream: BinaryIO) -> None: ...
    def path(self, digest: str) -> Path: ...
    def size(self, digest: str) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LabFiles:
    """Where the lab keeps what is too large for the database."""

    spool: Spool
    blobs: Path
    code: CodeStore


def lock_text(path: Path) -> str | None:
    """Return the lock in a file of the lab's; None where there is none, or what a job's owner called one is too long for it."""
    try:
        return read_regular(path, _LONGEST_LOCK).decode(errors="replace")
    except OSError:
        return None


def blob_file(root: Path, digest: str) -> Path:
    """Where the content with this digest lies. Raises `NotFound` for what is none: never is a path made of it."""
    if not is_digest(digest):
        raise NotFound(f'The lab has no content with the digest "{digest[:80]}".', remedy="It was never stored.")
    name = digest.removeprefix("sha256:")
    return root / name[:2] / name
