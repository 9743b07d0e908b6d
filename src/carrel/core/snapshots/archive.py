"""The archive format of a snapshot: a plain uncompressed tar of regular files and symbolic links.

Written by `write_archive` and read by `scan`, which trusts nothing: it refuses all that could write outside the target,
become a device, claim another owner's rights or name a place twice. POSIX.1-2017 `pax` has the format (ustar interchange
format, extended headers); GNU tar's long names are read too. Standard library only, because the runner needs it to be quick.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO

from carrel.core.domain.errors import Invalid, TooLarge

BLOCK = 512
#: Bytes read at once.
CHUNK = 1024**2
#: Longest path or link target, in bytes (PATH_MAX), and longest component of one (NAME_MAX).
MAX_PATH = 4096
MAX_NAME = 255
#: Most members of one archive.
MAX_MEMBERS = 200_000
_MAX_EXTENDED = 3 * MAX_PATH
#: Extended headers that change nothing that we keep.
_HARMLESS = frozenset({"mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "comment"})
_REFUSED = {"1": "a hard link", "3": "a device", "4": "a device", "6": "a pipe", "S": "a sparse file", "g": "a global header"}


class Kind(StrEnum):
    """What an entry of a snapshot is. Directories exist through the files in them."""

    FILE = "file"
    LINK = "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file or symbolic link of a snapshot."""

    #: Relative to the directory, with ``/``.
    path: str
    kind: Kind = Kind.FILE
    executable: bool = False
    #: Bytes; 0 for a link.
    size: int = 0
    #: SHA-256 of a file's bytes in hex; "" where it was not computed, and for a link.
    sha256: str = ""
    #: What a link points to.
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An entry and where its bytes lie in the archive."""

    entry: Entry
    offset: int


def manifest_digest(entries: Iterable[Entry]) -> str:
    """Return "sha256:<hex>" over the canonical list of paths, kinds, executable bits and contents.

    It does not depend on how the archive was made, on times, owners or the order of `entries`.
    """
    import hashlib

    digest = hashlib.sha256(b"carrel snapshot 1\n")
    for entry in sorted(entries, key=lambda entry: entry.path.encode()):
        value = entry.sha256 if entry.kind is Kind.FILE else entry.target
        line = json.dumps([entry.path, entry.kind.value, entry.executable, value], ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return "sha256:" + digest.hexdigest()


def check_path(path: str, what: str = "path") -> str:
    """Return `path` when it stays inside and is plain; raise `Invalid` when not."""
    fault = ""
    if path.startswith("/"):
        fault = "is absolute"
    elif "\0" in path:
        fault = "has a zero byte"
    elif not _encodable(path):
        fault = "is not UTF-8"
    elif len(path.encode()) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in path.split("/")):
        fault = "is too long"
    elif any(part in ("", ".", "..") for part in path.split("/")):
        fault = 'has an empty part, "." or ".."'
    if fault:
        raise Invalid(f"Snapshot: the {what} {path[:200]!r} {fault}.", remedy="Paths are relative and stay inside the directory.")
    return path


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_link(path: str, target: str) -> str:
    """Return `target` when the link at `path` cannot lead outside, also through other links; raise `Invalid` when it may.

    ``..`` is allowed only at the front, where it climbs real directories: behind a name it would climb from wherever
    that name, itself perhaps a link, leads to.
    """
    parts = target.split("/")
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    fault = ""
    if not target or "\0" in target or not _encodable(target) or len(target.encode()) > MAX_PATH:
        fault = "is empty, too long or not UTF-8"
    elif target.startswith("/"):
        fault = "is absolute"
    elif climbs > path.count("/"):
        fault = "leads outside the directory"
    elif ".." in parts[climbs:]:
        fault = 'has ".." behind a name'
    if fault:
        raise Invalid(
            f"Snapshot: the symbolic link {path!r} points to {target[:200]!r}, which {fault}.",
            remedy="Replace it by the file itself, list it in .gitignore, or name the data under inputs.",
        )
    return target


def check_tree(entries: Mapping[str, Entry]) -> None:
    """Raise `Invalid` when one entry lies under another, so that a file or link would have to be a directory too."""
    for path in entries:
        parent = path
        while "/" in parent:
            parent = parent.rpartition("/")[0]
            if parent in entries:
                raise Invalid(f"Snapshot: {path!r} lies under {parent!r}, which is not a directory.")


# --- writing ---------------------------------------------------------------------------------------------------------------


def header(entry: Entry) -> bytes:
    """Return the header blocks of `entry`: always the same for the same entry."""
    name, link = entry.path.encode(), entry.target.encode()
    extended = b""
    if len(name) > 100:
        extended += _extended_record("path", name)
    if len(link) > 100:
        extended += _extended_record("linkpath", link)
    mode = 0o755 if entry.executable else 0o644
    own = _block(name[:100], mode, entry.size, b"2" if entry.kind is Kind.LINK else b"0", link[:100])
    if not extended:
        return own
    return _block(b"././@PaxHeader", 0o644, len(extended), b"x", b"") + extended + padding(len(extended)) + own


def _block(name: bytes, mode: int, size: int, kind: bytes, link: bytes) -> bytes:
    def octal(value: int, width: int) -> bytes:
        return f"{value:0{width - 1}o}\0".encode()

    before = name.ljust(100, b"\0") + octal(mode, 8) + octal(0, 8) + octal(0, 8) + octal(size, 12) + octal(0, 12)
    after = kind + link.ljust(100, b"\0") + b"ustar\x0000" + b"\0" * 64 + octal(0, 8) + octal(0, 8) + b"\0" * 167
    checksum = sum(before) + sum(after) + 8 * 32
    return before + f"{checksum:06o}\0 ".encode() + after


def _extended_record(key: str, value: bytes) -> bytes:
    rest = b" " + key.encode() + b"=" + value + b"\n"
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def padding(size: int) -> bytes:
    """Return the zeros that fill up the last block of `size` bytes."""
    return b"\0" * (-size % BLOCK)


#: Two blocks of zeros end an archive.
END = b"\0" * (2 * BLOCK)

# --- reading ---------------------------------------------------------------------------------------------------------------


def scan(archive: BinaryIO, *, hashes: bool, most: int = MAX_MEMBERS) -> dict[str, Member]:
    """Return the members of a seekable `archive` by path, after checking every one; raise `Invalid` when one is refused.

    With `hashes`, every file is read and its `sha256` set. Directory members are passed over: directories exist through
    the files in them.
    """
    size = archive.seek(0, os.SEEK_END)
    archive.seek(0)
    members: dict[str, Member] = {}
    for member in _members(archive, size):
        entry = member.entry
        if entry.path in members:
            raise Invalid(f"Snapshot: {entry.path!r} is there twice.")
        if len(members) >= most:
            raise TooLarge(
                f"The snapshot has more than {most} files.",
                remedy="List what is not code in .gitignore, and name data under inputs.",
            )
        if hashes and entry.kind is Kind.FILE:
            member = Member(entry=_hashed(archive, member), offset=member.offset)
        members[entry.path] = member
    check_tree({path: member.entry for path, member in members.items()})
    return members


def _hashed(archive: BinaryIO, member: Member) -> Entry:
    import hashlib

    entry = member.entry
    digest = hashlib.sha256()
    for chunk in read_member(archive, member):
        digest.update(chunk)
    return Entry(path=entry.path, kind=entry.kind, executable=entry.executable, size=entry.size, sha256=digest.hexdigest())


def read_member(archive: BinaryIO, member: Member) -> Iterator[bytes]:
    """Yield the bytes of a file member."""
    archive.seek(member.offset)
    left = member.entry.size
    while left:
        chunk = archive.read(min(left, CHUNK))
        if not chunk:
            raise Invalid(f"Snapshot: {member.entry.path!r} is cut off.")
        left -= len(chunk)
        yield chunk


def _members(archive: BinaryIO, size: int) -> Iterator[Member]:
    position = 0
    long_name: dict[str, str] = {}
    while True:
        archive.seek(position)
        block = archive.read(BLOCK)
        if len(block) < BLOCK:
            raise Invalid("Snapshot: the archive is cut off.", remedy="Send it again.")
        if block == b"\0" * BLOCK:
            return
        length, kind = _length(block), chr(block[156])
        start = position + BLOCK
        position = start + length + (-length % BLOCK)
        if start + length > size:
            raise Invalid("Snapshot: a member is longer than the archive.", remedy="Send it again.")
        if kind in "xLK":
            if length > _MAX_EXTENDED:
                raise Invalid(f"Snapshot: an extended header of {length} bytes.")
            long_name |= _extended(kind, archive.read(length))
            continue
        member = _member(block, kind, length, start, long_name)
        long_name = {}
        if member is not None:
            yield member


def _length(block: bytes) -> int:
    claimed = _octal(block[148:156], "checksum")
    if claimed != sum(block) - sum(block[148:156]) + 8 * 32:
        raise Invalid("Snapshot: a header has the wrong checksum: this is not a tar archive, or it is damaged.")
    return _octal(block[124:136], "size")


def _octal(digits: bytes, what: str) -> int:
    text = digits.strip(b" \0")
    if not text.isdigit() or b"8" in text or b"9" in text:
        raise Invalid(f"Snapshot: a header's {what} is not an octal number.")
    return int(text, 8)


def _extended(kind: str, data: bytes) -> dict[str, str]:
    if kind in "LK":
        return {"path" if kind == "L" else "linkpath": _decode(data.rstrip(b"\0"))}
    names: dict[str, str] = {}
    while data:
        digits, _, _ = data.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 6 else 0
        record, data = data[:length], data[length:]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or not record.endswith(b"\n") or len(record) != length:
            raise Invalid("Snapshot: a damaged extended header.")
        name = _decode(key)
        if name in ("path", "linkpath"):
            names[name] = _decode(value)
        elif name not in _HARMLESS:
            raise Invalid(f"Snapshot: an extended header {name!r}, which is not supported.")
    return names


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid(f"Snapshot: the path {data[:200]!r} is not UTF-8.") from None


def _member(block: bytes, kind: str, length: int, start: int, long_name: Mapping[str, str]) -> Member | None:
    path = long_name.get("path")
    if path is None:
        path = _decode(block[:100].partition(b"\0")[0])
        prefix = _decode(block[345:500].partition(b"\0")[0]) if block[257:263] == b"ustar\0" else ""
        path = f"{prefix}/{path}" if prefix else path
    path = path.removeprefix("./")
    mode = _octal(block[100:108], "mode")
    if mode & 0o7000:
        raise Invalid(f"Snapshot: {path!r} has the setuid, setgid or sticky bit.", remedy="Take it off with chmod.")
    if kind == "5":
        if path.strip("/.") or ".." in path:  # "./" itself is common and harmless
            check_path(path.rstrip("/"))
        return None
    if kind in "0\0":
        entry = Entry(path=check_path(path), executable=bool(mode & 0o100), size=length)
    elif kind == "2" and length == 0:
        target = long_name.get("linkpath") or _decode(block[157:257].partition(b"\0")[0])
        entry = Entry(path=check_path(path), kind=Kind.LINK, target=check_link(path, target))
    else:
        what = _REFUSED.get(kind, f"a member of type {kind!r}")
        raise Invalid(f"Snapshot: {path!r} is {what}.", remedy="Only regular files and symbolic links travel.")
    return Member(entry=entry, offset=start)


def check_digest(digest: str, members: Mapping[str, Member]) -> None:
    """Raise `Invalid` when hashed `members` do not make `digest`."""
    found = manifest_digest(member.entry for member in members.values())
    if found != digest:
        raise Invalid(
            f"Snapshot: the content has the digest {found}, not {digest}.", remedy="It was damaged on its way: send it again."
        )
