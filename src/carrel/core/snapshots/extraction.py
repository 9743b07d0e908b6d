"""Making a directory of a snapshot again. Standard library only, because the runner needs it to be quick."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from carrel.core.domain.errors import Conflict, StorageFull
from carrel.core.snapshots.archive import Entry, Kind, Member, check_digest, read_member, scan
from carrel.core.spool.disk import full_at
from carrel.core.spool.trees import remove_tree

#: What the system says when a disk or a quota is full.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def extract(archive: Path, target: Path, *, digest: str | None = None) -> None:
    """Write the files of `archive` into `target`, which must be absent or empty. Modes become 0644, or 0755 if executable.

    Everything is checked before anything is written, and links come last, so nothing is ever written through one. With
    `digest`, what was read is compared with it. Raises `Invalid` for an archive that is refused, `Conflict` when `target`
    has content, `StorageFull` when the disk is full; after an error `target` is empty again.
    """
    with archive.open("rb") as source:
        members = scan(source, hashes=digest is not None)
        if digest is not None:
            check_digest(digest, members)
        target.mkdir(mode=0o755, parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise Conflict(f"{target} is not empty.", remedy="A snapshot is extracted into a new directory.")
        try:
            _write_tree(source, members, target)
        except BaseException as error:
            for child in target.iterdir():
                remove_tree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
            if isinstance(error, OSError) and error.errno in FULL:
                said = f"There is no room for the code. {full_at(target, error)}"
                raise StorageFull(said, remedy="Free some space, or ask the lab's administrator.") from error
            raise


def _write_tree(source: BinaryIO, members: Mapping[str, Member], target: Path) -> None:
    root = os.fspath(target)
    made: set[str] = {""}
    links: list[Entry] = []
    for path, member in members.items():
        parent = path.rpartition("/")[0]
        if parent not in made:
            _make_directories(root, parent, made)
        if member.entry.kind is Kind.LINK:
            links.append(member.entry)
            continue
        mode = 0o755 if member.entry.executable else 0o644
        descriptor = os.open(f"{root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with open(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, mode)  # the umask may have taken bits away
            for chunk in read_member(source, member):
                write_all(file, chunk)
    for link in links:
        Path(root, link.path).symlink_to(link.target)


def write_all(file: BinaryIO, chunk: bytes) -> None:
    """Write all of `chunk` to an unbuffered `file`, whose own `write` may stop half-way."""
    view = memoryview(chunk)
    while view:
        view = view[file.write(view) :]


def _make_directories(root: str, path: str, made: set[str]) -> None:
    done = ""
    for part in path.split("/"):
        done = f"{done}/{part}" if done else part
        if done not in made:
            directory = Path(root, done)
            directory.mkdir()
            directory.chmod(0o755)
            made.add(done)
