"""Writing a crate: a ZIP archive whose bytes depend on its content alone.

Nothing in it is compressed, because what a compressor makes of the same bytes differs between its versions. Times are those of
the format's first day. Unix modes say which file is executable and which is a symbolic link, as other programs write them.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable
from typing import BinaryIO
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from carrel.core.crates.about import read_about
from carrel.core.crates.content import CODE, LOCK, METADATA, METRICS, RECORD, RESULTS, Content
from carrel.core.crates.metadata import describe_crate, metrics_text, record_text
from carrel.core.snapshots import Entry, Kind

_FIRST_DAY = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
#: A member of this size has sizes of 64 bits.
_LARGE = 1 << 31


def write_crate(content: Content, file: BinaryIO, *, report: Callable[[str], None] = lambda _path: None) -> None:
    """Write the crate to an empty, seekable `file`; `report` is called with the name of each member before it is written."""
    with ZipFile(file, "w", ZIP_STORED) as archive:

        def add(name: str, size: int, pieces: Iterable[bytes], mode: int = stat.S_IFREG | 0o644) -> None:
            report(name)
            member = ZipInfo(name, _FIRST_DAY)
            member.create_system = _UNIX
            member.external_attr = mode << 16
            with archive.open(member, "w", force_zip64=size >= _LARGE) as target:
                for piece in pieces:
                    target.write(piece)

        def add_text(name: str, text: bytes) -> None:
            add(name, len(text), (text,))

        add_text(METADATA, describe_crate(content, read_about(content.said)))
        add_text(RECORD, record_text(content))
        if content.lock:
            add_text(LOCK, content.lock.encode())
        if content.metrics is not None:
            add_text(METRICS, metrics_text(content))
        add(CODE, 0, (), stat.S_IFDIR | 0o755)
        for entry in content.code:
            if entry.kind is Kind.LINK:
                target = entry.target.encode()
                add(CODE + entry.path, len(target), (target,), stat.S_IFLNK | 0o777)
            else:
                add(CODE + entry.path, entry.size, content.read_code(entry), _mode(entry))
        for output in content.outputs:
            add(RESULTS + output.path, output.size, content.read_output(output))


def _mode(entry: Entry) -> int:
    return stat.S_IFREG | (0o755 if entry.executable else 0o644)
