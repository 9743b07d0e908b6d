"""Keeping snapshots: one file each, named by its digest."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from carrel.core.domain.errors import Invalid, NotFound, StorageFull, TooLarge
from carrel.core.snapshots.archive import CHUNK, MAX_MEMBERS, Entry, check_digest, scan
from carrel.core.snapshots.contents import SnapshotFiles
from carrel.core.snapshots.extraction import FULL, extract, write_all
from carrel.core.snapshots.packing import LIMIT_BYTES
from carrel.core.spool.disk import full_at

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_PARTIAL = ".partial-"


class SnapshotStore:
    """A directory of snapshots. Safe for any number of processes at once: what is there is complete and never changes."""

    def __init__(self, root: Path, *, limit: int = 2 * LIMIT_BYTES, files: int = MAX_MEMBERS) -> None:
        """Archives of more than `limit` bytes, or of more than `files` files, are not taken."""
        self.root = root
        self._limit = limit
        self._files = files

    def path(self, digest: str) -> Path:
        """Return where the archive of `digest` is or would be; raise `Invalid` when `digest` is none."""
        match = _DIGEST.fullmatch(digest)
        if match is None:
            raise Invalid(f'"{digest[:100]}" is not a digest.', remedy='A digest is "sha256:" and 64 hexadecimal digits.')
        return self.root / f"{match[1]}.tar"

    def has(self, digest: str) -> bool:
        """Tell whether the snapshot is here. Who asks is about to use it: it counts as used now (`carrel.lab.retention`)."""
        try:
            os.utime(self.path(digest))
        except FileNotFoundError:
            return False
        except OSError:  # on a disk that nobody may write to it is there all the same
            return self.path(digest).exists()
        return True

    def size(self, digest: str) -> int:
        """Return the bytes that the snapshot takes on the disk; 0 when it is not here."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def add(self, digest: str, stream: BinaryIO) -> None:
        """Keep the archive that `stream` yields, after reading all of it and comparing its content with `digest`.

        Raises `Invalid` for an archive that is refused or that has another digest, `TooLarge` for one that is;
        `StorageFull` when the disk is. After an error nothing is left behind. Adding what is there changes nothing.
        """
        final = self.path(digest)
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=_PARTIAL, suffix=".tar", dir=self.root)
        except OSError as error:
            raise _storage_error(error, self.root) from error
        partial = Path(name)
        try:
            with open(descriptor, "w+b", buffering=0) as file:
                _receive(stream, file, self._limit)
                check_digest(digest, scan(file, hashes=True, most=self._files))
                os.fsync(file.fileno())
            partial.replace(final)
            _sync_directory(self.root)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise _storage_error(error, self.root) from error
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def extract(self, digest: str, target: Path) -> None:
        """Write the snapshot's files into `target` (see `extract`); raise `NotFound` when it is not here."""
        extract(self._existing(digest), target)

    def files(self, digest: str, directory: str = ".") -> SnapshotFiles:
        """Return the files below `directory` of the snapshot, to be read in place; raise `NotFound` when it is not here."""
        return SnapshotFiles.open(self._existing(digest), directory)

    def open(self, digest: str) -> BinaryIO:
        """Return the archive itself, to be read; raise `NotFound` when it is not here."""
        return self._existing(digest).open("rb")

    def entries(self, digest: str) -> Sequence[Entry]:
        """Return what the snapshot holds, each file with its digest; raise `NotFound` when it is not here."""
        with self._existing(digest).open("rb") as source:
            return [member.entry for member in scan(source, hashes=True, most=self._files).values()]

    def remove(self, digest: str) -> None:
        """Delete the snapshot; nothing happens when it is not here."""
        self.path(digest).unlink(missing_ok=True)

    def sweep(self, before: float) -> int:
        """Delete what adders that were killed left behind, if last written to before that Unix time; return how many."""
        left = [path for path in self.root.glob(f"{_PARTIAL}*") if path.stat().st_mtime < before]
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def _existing(self, digest: str) -> Path:
        path = self.path(digest)
        if not path.exists():
            raise NotFound(f"There is no snapshot {digest}.", remedy="Send the code again.")
        return path


def _receive(stream: BinaryIO, file: BinaryIO, limit: int) -> None:
    size = 0
    while chunk := stream.read(CHUNK):
        size += len(chunk)
        if size > limit:
            raise TooLarge(
                f"The snapshot has more than {limit} bytes.",
                remedy="List what is not code in .gitignore, and name data under inputs.",
            )
        write_all(file, chunk)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _storage_error(error: OSError, place: Path) -> Exception:
    if error.errno in FULL:
        said = f"There is no room for the snapshot; nothing was stored. {full_at(place, error)}"
        return StorageFull(said, remedy="Free some space, or ask the lab's administrator.")
    return error
