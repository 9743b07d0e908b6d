"""Reading a crate that somebody else has made: it is hostile until it has been checked.

Nothing of it is ever written under a name that it chooses. Before anything is read of it: every name is plain and there once, no
member is encrypted, a device or a link elsewhere than in the code, and all members together are no larger than what an archive
of this size holds. Then the code must have the digest that the record names, and so must the lock and the outputs that are there.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, LargeZipFile, ZipFile, ZipInfo

from carrel.core.crates.content import CODE, METADATA, METRICS, RECORD, RESULTS
from carrel.core.domain.errors import CarrelError, Invalid, NotFound, TooLarge
from carrel.core.domain.units import GIB, MIB, format_size
from carrel.core.snapshots import Entry, Kind, manifest_digest
from carrel.core.snapshots.archive import (
    CHUNK,
    END,
    MAX_MEMBERS,
    MAX_PATH,
    check_link,
    check_path,
    check_tree,
    header,
    padding,
)

#: Bytes of a record and of other JSON, and of the code.
_LONGEST_JSON = 64 * MIB
_MOST_CODE = GIB
#: What is compressed may be so much larger than the archive.
_GROWTH = 100
_IN_MEMORY = 16 * MIB
_OURS = "Name a file that `carrel export` wrote."
_AGAIN = "Ask for the crate again: `carrel export` writes it."


class Crate:
    """A crate that is open and whose names and sizes were checked."""

    def __init__(self, path: Path, archive: ZipFile, members: Mapping[str, ZipInfo]) -> None:
        self.path = path
        self._archive = archive
        self._members = members

    def json(self, name: str) -> dict[str, Any] | None:
        """An object of JSON; None where there is no such member. Raises `Invalid` for what is no such object."""
        member = self._members.get(name)
        if member is None:
            return None
        if member.file_size > _LONGEST_JSON:
            raise TooLarge(f"{self.path}: {name} has {format_size(member.file_size)}; {format_size(_LONGEST_JSON)} are read.")
        try:
            found = json.loads(b"".join(self._read(member)))
        except (ValueError, RecursionError) as error:
            raise Invalid(f"{self.path}: {name} is not JSON: {str(error)[:200]}.", remedy=_AGAIN) from None
        if not isinstance(found, dict):
            raise Invalid(f"{self.path}: {name} is no object.", remedy=_AGAIN)
        return found

    @property
    def record(self) -> dict[str, Any]:
        """The record of the job, as JSON that nobody has checked."""
        found = self.json(RECORD)
        if found is None:
            raise Invalid(
                f"{self.path} has no {RECORD}: it is no job of Carrel's.",
                remedy="Only crates that Carrel has written can be replayed.",
            )
        return found

    @property
    def metrics(self) -> dict[str, Any] | None:
        """The metrics, as JSON that nobody has checked."""
        return self.json(METRICS)

    def code(self, digest: str) -> Code:
        """The code. Raises `Invalid` where it has another digest than the record says."""
        found = {name.removeprefix(CODE): member for name, member in self._members.items() if _is_code(name)}
        if sum(member.file_size for member in found.values()) > _MOST_CODE:
            raise TooLarge(f"{self.path}: the code has more than {format_size(_MOST_CODE)}.")
        entries = {path: self._entry(path, member) for path, member in found.items()}
        try:
            check_tree(entries)
        except Invalid as error:
            raise Invalid(f"{self.path}: {error.message}", remedy=_AGAIN) from None
        if (made := manifest_digest(entries.values())) != digest:
            raise Invalid(
                f"{self.path}: the code is not that of the record: it is {made[:19]}…, not {digest[:19]}….",
                remedy=f"{_AGAIN} A program that packed it anew may have lost links or which files are executable.",
            )
        return Code(digest, [(entries[path], found[path]) for path in sorted(found)], self)

    def check_outputs(self, digests: Mapping[str, str]) -> None:
        """Raise `Invalid` for an output that is in the crate and that is not what `digests` says, by its path."""
        for name, member in self._members.items():
            if not name.startswith(RESULTS) or name.endswith("/"):
                continue
            path = name.removeprefix(RESULTS)
            if path not in digests:
                raise Invalid(f'{self.path}: the record knows no output "{path}".', remedy=_AGAIN)
            found = hashlib.sha256()
            for piece in self._read(member):
                found.update(piece)
            if f"sha256:{found.hexdigest()}" != digests[path]:
                raise Invalid(f'{self.path}: the output "{path}" is not that of the record.', remedy=_AGAIN)

    def _entry(self, path: str, member: ZipInfo) -> Entry:
        mode = member.external_attr >> 16
        if stat.S_ISLNK(mode):
            if member.file_size > MAX_PATH:
                raise Invalid(f"{self.path}: the link {path!r} is too long.", remedy=_AGAIN)
            target = b"".join(self._read(member)).decode("utf-8", "surrogateescape")
            try:
                return Entry(path=path, kind=Kind.LINK, target=check_link(path, target))
            except Invalid as error:
                raise Invalid(f"{self.path}: {error.message}", remedy=_AGAIN) from None
        found = hashlib.sha256()
        for piece in self._read(member):
            found.update(piece)
        return Entry(path=path, executable=bool(mode & 0o100), size=member.file_size, sha256=found.hexdigest())

    def _read(self, member: ZipInfo) -> Iterator[bytes]:
        """No more than the size that was checked; what is shorter or damaged is an error."""
        left = member.file_size
        try:
            with self._archive.open(member) as file:
                while piece := file.read(CHUNK):
                    left -= len(piece)
                    if left < 0:
                        break
                    yield piece
        except (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
            raise Invalid(f"{self.path}: {member.filename!r} is damaged: {error}.", remedy=_AGAIN) from None
        if left:
            raise Invalid(f"{self.path}: {member.filename!r} has not the size that it says.", remedy=_AGAIN)


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a crate, ready to be sent as a snapshot."""

    digest: str
    _files: list[tuple[Entry, ZipInfo]]
    _crate: Crate

    def open(self) -> BinaryIO:
        """Return a temporary file with its archive, at its start; it is gone when closed."""
        archive: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the caller closes it
        try:
            for entry, member in self._files:
                archive.write(header(entry))
                if entry.kind is Kind.FILE:
                    for piece in self._crate._read(member):
                        archive.write(piece)
                    archive.write(padding(entry.size))
            archive.write(END)
            archive.seek(0)
        except BaseException:
            archive.close()
            raise
        return archive  # type: ignore[return-value]


@contextmanager
def open_crate(path: Path) -> Iterator[Crate]:
    """Open a crate. Raises `NotFound` for no file, `Invalid` and `TooLarge` for one that is not taken."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                archive = ZipFile(file)
            except (BadZipFile, LargeZipFile, NotImplementedError, UnicodeDecodeError, ValueError, OSError) as error:
                said = str(error)[:200] or type(error).__name__
                raise Invalid(f"{path} is no ZIP archive: {said}.", remedy=_OURS) from None
            with archive:
                yield Crate(path, archive, _checked(path, archive, size))
    except FileNotFoundError:
        raise NotFound(f"There is no file {path}.", remedy=_OURS) from None
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror or error}.") from None


def _checked(path: Path, archive: ZipFile, size: int) -> dict[str, ZipInfo]:
    """The members by name, none of which can do harm."""
    every = archive.infolist()
    if len(every) > MAX_MEMBERS:
        raise TooLarge(f"{path} has {len(every)} members; at most {MAX_MEMBERS} are read.")
    members: dict[str, ZipInfo] = {}
    for member in every:
        name = member.orig_filename
        fault = _fault(name, member)
        if not fault and name in members:
            fault = "is there twice"
        if fault:
            raise Invalid(f"{path}: the member {name[:200]!r} {fault}.", remedy="This is no crate of Carrel's: do not unpack it.")
        members[name] = member
    total, most = sum(member.file_size for member in every), _GROWTH * size
    if total > most:
        raise TooLarge(
            f"{path} has {format_size(size)} and says that it holds {format_size(total)}.", remedy="This is no crate of Carrel's."
        )
    if METADATA not in members:
        raise Invalid(f"{path} has no {METADATA} at its top: it is no RO-Crate.", remedy=_OURS)
    return members


def _fault(name: str, member: ZipInfo) -> str:
    """What is wrong with it; "" for nothing."""
    kind = stat.S_IFMT(member.external_attr >> 16)
    try:
        check_path(name.removesuffix("/"))
    except CarrelError:
        return "has no plain name"
    if "\\" in name or name != member.filename:
        return "has no plain name"
    if member.flag_bits & 0x1:
        return "is encrypted"
    if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        return "is compressed in a way that is not read"
    if name.endswith("/"):
        return "is a directory with content" if member.file_size or kind not in (0, stat.S_IFDIR) else ""
    if kind == stat.S_IFLNK:
        return "" if _is_code(name) else "is a link"
    return "" if kind in (0, stat.S_IFREG) else "is neither a file nor a directory"


def _is_code(name: str) -> bool:
    return name.startswith(CODE) and not name.endswith("/")
