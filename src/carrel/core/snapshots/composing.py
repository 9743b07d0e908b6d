"""A snapshot made of others: the files of one, some of them as another has them, some with texts of their own."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import BinaryIO

from carrel.core.snapshots.archive import (
    END,
    Entry,
    Kind,
    Member,
    check_tree,
    header,
    manifest_digest,
    padding,
    read_member,
    scan,
)
from carrel.core.snapshots.store import SnapshotStore


def compose(
    store: SnapshotStore,
    base: str,
    other: str,
    *,
    taken: Collection[str] = (),
    texts: Mapping[str, str] | None = None,
    keep: bool = True,
) -> str:
    """Make the snapshot `base` with the paths in `taken` as `other` has them (or without them, if it has none), and with `texts`.

    Returns its digest; the store has it then, unless it is not to `keep` it. Raises `NotFound` when one of both is not here, and
    `Invalid` when the files do not go together.
    """
    with store.open(base) as first, store.open(other) as second:
        files = dict(_files(first, second, frozenset(taken), {path: text.encode() for path, text in (texts or {}).items()}))
        entries = {path: entry for path, (entry, _) in files.items()}
        check_tree(entries)
        digest = manifest_digest(entries.values())
        if keep and not store.has(digest):
            with tempfile.TemporaryFile(dir=store.root) as archive:
                for path in sorted(files, key=str.encode):
                    entry, source = files[path]
                    archive.write(header(entry))
                    _copy(entry, source, archive)
                archive.write(END)
                archive.seek(0)
                store.add(digest, archive)
    return digest


_Source = tuple[BinaryIO, Member] | bytes


def _files(
    first: BinaryIO, second: BinaryIO, taken: frozenset[str], texts: Mapping[str, bytes]
) -> Iterator[tuple[str, tuple[Entry, _Source]]]:
    mine, theirs = scan(first, hashes=True), scan(second, hashes=True)
    for path, member in mine.items():
        if path in texts:
            text = texts[path]
            yield path, (replace(member.entry, size=len(text), sha256=hashlib.sha256(text).hexdigest()), text)
        elif path not in taken:
            yield path, (member.entry, (first, member))
    for path in taken & theirs.keys():
        yield path, (theirs[path].entry, (second, theirs[path]))


def _copy(entry: Entry, source: _Source, archive: BinaryIO) -> None:
    if entry.kind is Kind.LINK:
        return
    for chunk in [source] if isinstance(source, bytes) else read_member(*source):
        archive.write(chunk)
    archive.write(padding(entry.size))
