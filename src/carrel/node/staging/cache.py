"""Inputs that a user's jobs have fetched before: content by its digest, and which content an address had when it was asked last.

Each user has a cache of their own, which only what stages their inputs touches: what one may read is not told to another.
Content is checked by its digest each time that it is taken. See docs/decisions/0064-environments-before-the-place.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from carrel.core.domain.units import GIB
from carrel.core.spool.trees import entries_below, remove_tree
from carrel.node.staging.download import Download, News

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
#: Shares the blocks of a file with a new one, where the file system can (ioctl_ficlone(2)).
_FICLONE = 0x40049409
#: Seconds after which nobody is expected to need an input again.
_UNUSED = 30 * 86400.0
#: Seconds after which what a killed process left half-written is nobody's.
_ABANDONED = 86400.0
#: Bytes of a disk that the cache leaves free, and of a smaller disk the part. A lab starts nothing below half of it.
_FREE, _FREE_PART = 2 * GIB, 0.1


class InputCache:
    """A directory with content, and the marks of addresses (an ETag, a time of change, what a store says of an object).

    Nothing of it is ever needed: what cannot be kept or read is fetched. Safe for any number of processes at a time.
    """

    def __init__(self, directory: Path, most: int, leave: int | None = None, *, filling: bool = False) -> None:
        """`most` bytes are kept at most, and `leave` bytes stay free: 2 GiB, or a tenth of a smaller disk.

        What was not used for the longest time goes first. `filling`: nobody writes to files that come from here or are kept, so
        they need not be copied.
        """
        self._content, self._marks = directory / "content", directory / "marks"
        self._most, self._leave, self._filling = most, leave, filling
        #: Where jobs' inputs arrive that are fetched before their jobs are placed, by the jobs' numbers.
        self._arriving = directory / "arriving"

    @property
    def room(self) -> int:
        """How many bytes one input may have that is kept, at most."""
        near = next(place for place in (self._content, *self._content.parents) if place.exists())
        about = os.statvfs(near)
        return min(self._most, max(0, self._beyond(about)) + self._held())

    def _held(self) -> int:
        """Bytes that would go to make room."""
        return sum(path.stat().st_size for path in self._content.iterdir()) if self._content.exists() else 0

    def take(self, digest: str, target: Path, news: News) -> bool:
        """Put the content of this digest at `target`; False when it is not here, or damaged."""
        name = _DIGEST.fullmatch(digest)
        if name is None:
            return False
        path = self._content / name[1]
        try:
            source = path.open("rb", buffering=0)
        except OSError:
            return False
        with source:
            with suppress(OSError):
                os.utime(source.fileno())
            if self._filling and hashlib.file_digest(source, "sha256").hexdigest() == name[1] and _link(path, target):
                return True
            source.seek(0)
            with Download(target, news, os.fstat(source.fileno()).st_size) as arriving:
                arriving.take(source)
            if arriving.digest == digest:
                return True
        with suppress(OSError):
            path.unlink()
        return False

    def seen(self, uri: str) -> tuple[str, str] | None:
        """The mark that `uri` had when it was fetched last, and the digest of what came; None when nothing is known."""
        try:
            mark, digest = json.loads(self._mark(uri).read_bytes())
        except (OSError, ValueError, TypeError):
            return None
        name = _DIGEST.fullmatch(str(digest))
        return (str(mark), str(digest)) if name is not None and (self._content / name[1]).exists() else None

    def keep(self, digest: str, path: Path, *, uri: str = "", mark: str = "") -> None:
        """Keep the content of `path`, a file with this digest, and that `uri` with this mark (if it has one) is that."""
        name = _DIGEST.fullmatch(digest)
        if name is None:
            return
        with suppress(OSError):
            for directory in (self._content, self._marks):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (self._content / name[1]).exists():
                if not self._make_room(path.stat().st_size):
                    return
                if not (self._filling and _link(path, self._content / name[1])):
                    self._write(self._content / name[1], path)
            if uri and mark:
                fd, made = tempfile.mkstemp(dir=self._marks, prefix=".")
                with os.fdopen(fd, "w") as file:
                    json.dump([mark, digest], file)
                Path(made).replace(self._mark(uri))

    def _write(self, place: Path, source: Path) -> None:
        """A copy of its own: the job may write to what it was given."""
        fd, made = tempfile.mkstemp(dir=self._content, prefix=".")
        try:
            with os.fdopen(fd, "wb") as file, source.open("rb") as original:
                try:
                    fcntl.ioctl(file.fileno(), _FICLONE, original.fileno())
                except OSError:
                    shutil.copyfileobj(original, file, 1024**2)
            Path(made).replace(place)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise

    def _make_room(self, size: int) -> bool:
        """Remove what is old, then what was not used for the longest time; False when `size` bytes do not fit all the same."""
        now = time.time()
        for mark in self._marks.iterdir():
            if now - mark.stat().st_mtime > _UNUSED:
                mark.unlink(missing_ok=True)
        for place in self._arriving.iterdir() if self._arriving.is_dir() else ():
            newest = max((entry.about.st_mtime for entry in entries_below(place)), default=0.0)
            if now - max(newest, place.lstat().st_mtime) > _ABANDONED:
                remove_tree(place)
        entries = sorted(self._entries(now))
        total = sum(held for _used, held, _path in entries)
        for used, held, path in entries:
            if now - used <= _UNUSED and total + size <= self._most and self._fits(size):
                break
            path.unlink(missing_ok=True)
            total -= held
        return total + size <= self._most and self._fits(size)

    def _entries(self, now: float) -> Iterator[tuple[float, int, Path]]:
        for path in self._content.iterdir():
            about = path.stat()
            if not path.name.startswith("."):
                yield about.st_mtime, about.st_size, path
            elif now - about.st_mtime > _ABANDONED:
                path.unlink(missing_ok=True)

    def _fits(self, size: int) -> bool:
        return self._beyond(os.statvfs(self._content)) >= size

    def _beyond(self, about: os.statvfs_result) -> int:
        """Bytes of a disk beyond those that stay free."""
        stays = min(_FREE, int(about.f_blocks * about.f_frsize * _FREE_PART)) if self._leave is None else self._leave
        return about.f_bavail * about.f_frsize - stays

    def _mark(self, uri: str) -> Path:
        return self._marks / hashlib.sha256(uri.encode(errors="surrogatepass")).hexdigest()


def _link(source: Path, target: Path) -> bool:
    """Have the file at another place, too; False where the places are not on one mount."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        return False
    return True


def open_cache(directory: str, most: int, leave: int | None = None, *, filling: bool = False) -> InputCache | None:
    """The cache in `directory`; None where there is none."""
    return InputCache(Path(directory), most, leave, filling=filling) if directory and most > 0 else None
