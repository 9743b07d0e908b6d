"""A file that arrives: written, counted and digested piece by piece, with news of how far it is."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from carrel.core.domain.units import format_size
from carrel.node.staging.failed import InputFailed, NotKept

_CHUNK = 1024**2
#: Seconds between two pieces of news.
_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Most:
    """What one input may be at most; 0: no limit."""

    size: int = 0
    files: int = 0
    #: Bytes that can be kept of it, where it is fetched to be kept.
    room: int | None = None
    #: Seconds for fetching it, of a git repository.
    seconds: float = 0
    #: Where its host is, as git's http.curloptResolve has it: then no redirect leads elsewhere. None: wherever its name leads.
    pinned: str | None = None

    def check(self, size: int, files: int) -> None:
        """Raise `InputFailed` for more, and `NotKept` for what is not too large but for being kept."""
        if 0 < self.size < size:
            raise InputFailed(
                f"The input has more than {format_size(self.size)}, which is the most that this lab takes (input_limit).",
                remedy="Name a part of it, or ask an administrator.",
            )
        if 0 < self.files < files:
            raise InputFailed(
                f"The input has more than {self.files} files, which is the most that this lab takes (input_files).",
                remedy="Name an archive of them, or a part, or ask an administrator.",
            )
        if self.room is not None and size > self.room:
            raise NotKept(
                f"The input has more than {format_size(self.room)}, and no more can be kept (input_cache, and what stays free)."
            )


NO_LIMIT = Most()


#: Files of a directory up to which each has its digest in the record.
MOST_LISTED = 200


class News:
    """Tells the owner how far an input is, not too often."""

    def __init__(
        self,
        message: str,
        report: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
        *,
        most: Most = NO_LIMIT,
    ) -> None:
        self.most = most
        self._files = 0
        self._message, self._report, self._monotonic = message, report, monotonic
        self._next = monotonic() + _PAUSE
        self._before = 0
        self._now = 0
        #: The address of exactly this, where what was named may be something else tomorrow: a commit for a branch; "": as named.
        self.source = ""
        #: Digests of the files of a directory, by their paths in it.
        self.contents: dict[str, str] = {}
        report(message)

    def at(self, size: int, total: int | None) -> None:
        """So much of the present file is there; of `total`, where that is known."""
        self._now = size
        self.most.check(self._before + max(size, total or 0), self._files + 1)
        if self._monotonic() < self._next:
            return
        self._next = self._monotonic() + _PAUSE
        of = f" of {format_size(total)}" if total else ""
        more = f", {format_size(self._before)} of other files before" if self._before else ""
        self._report(f"{self._message}: {format_size(size)}{of}{more}")

    def found(self, path: str, digest: str) -> None:
        """The digest of a file of a directory. Names that are no text are left out: a record is text."""
        if len(self.contents) <= MOST_LISTED and not any("\ud800" <= letter <= "\udfff" for letter in path):
            self.contents[path] = digest

    def also(self, text: str) -> None:
        """Something else that the owner should know of it."""
        self._report(f"{self._message}: {text}")

    def whole(self) -> None:
        """The present file is there."""
        self._before, self._now = self._before + self._now, 0
        self._files += 1
        self.most.check(self._before, self._files)


class Download:
    """One file, from its first byte to its last. It replaces what lay at its place; a link is replaced and not followed."""

    def __init__(self, target: Path, news: News, total: int | None = None) -> None:
        self._target, self._news, self.total = target, news, total
        self.size = 0
        self._digest = hashlib.sha256()

    def __enter__(self) -> Self:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._target.unlink(missing_ok=True)
        self._file = cast(BinaryIO, open(self._target, "xb", buffering=0))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        if kind is None:
            self._news.whole()

    def take(self, source: BinaryIO) -> None:
        """Write what `source` has, to its end."""
        while chunk := source.read(_CHUNK):
            self._digest.update(chunk)
            view = memoryview(chunk)
            while view:
                view = view[self._file.write(view) :]
            self.size += len(chunk)
            self._news.at(self.size, self.total)

    def again(self) -> None:
        """What came so far is not the beginning of what comes now."""
        self._file.seek(0)
        self._file.truncate()
        self.size, self._digest = 0, hashlib.sha256()

    @property
    def digest(self) -> str:
        """Of what is there ("sha256:...")."""
        return f"sha256:{self._digest.hexdigest()}"


def manifest(files: Iterable[tuple[str, str]], news: News) -> str:
    """The digest of a directory: that of its paths and their digests, in this order. `news` remembers those of its files."""
    digest = hashlib.sha256()
    for path, file_digest in files:
        news.found(path, file_digest)
        digest.update(f"{path}\0{file_digest}\n".encode(errors="surrogateescape"))
    return f"sha256:{digest.hexdigest()}"
