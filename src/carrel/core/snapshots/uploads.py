"""Files that users upload: where each belongs in a directory of code, and what a .zip holds. All of it is hostile."""

from __future__ import annotations

import errno
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import MIB, format_size
from carrel.core.snapshots.archive import check_path
from carrel.core.snapshots.packing import LIMIT_BYTES, LIMIT_FILES

_CHUNK = MIB
#: Longest path of an uploaded file in bytes, and directories that it lies in: each of them is made on the disk.
_PATH, _DEPTH = 1024, 64
#: Bytes of an archive's list of files.
_LIST = 8 * MIB
_NO_ARCHIVE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
_MANY = f"The archive has more than {LIMIT_FILES:,} files."


def inside(path: str) -> Path:
    """Return where below the directory of the code an uploaded file belongs. Raises `Invalid`."""
    path = check_path(path.replace("\\", "/"))
    if len(path.encode()) > _PATH or path.count("/") > _DEPTH:
        raise Invalid(
            f'The path "{path[:80]}…" is longer than {_PATH} bytes, or lies in more than {_DEPTH} directories.',
            remedy="Give files shorter names, and let them lie less deep.",
        )
    return Path(path)


@contextmanager
def once(path: str) -> Iterator[None]:
    """Raise `Invalid` where what is written within stands in the place of something else."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise Invalid(f'"{path[:200]}" is there twice, or as a file and as a directory.', remedy="Keep one of them.") from error


def unzip(archive: Path, place: Path) -> None:
    """Write the files of a .zip below `place`. Sizes in it are not believed: what comes out of it is counted."""
    total = 0
    try:
        with archive.open("rb") as file:
            # The list is read into memory as a whole, a hundred times as large as it is; this is where `zipfile` finds it.
            end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
        if end is not None and end[5] > _LIST:
            raise Invalid(_MANY, remedy="Leave data and environments out.")
        with zipfile.ZipFile(archive) as given:
            members = [one for one in given.infolist() if not one.is_dir()]
            if len(members) > LIMIT_FILES:
                raise Invalid(_MANY, remedy="Leave data and environments out.")
            for one in members:
                if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others say how much memory they want
                    raise NotImplementedError("its files are neither stored nor deflated")
                mode = one.external_attr >> 16
                if stat.S_ISLNK(mode):
                    raise Invalid(
                        f'"{one.filename[:200]}" in the archive is a symbolic link.', remedy="Put the file itself in it."
                    )
                target = place / inside(one.filename)
                with once(one.filename):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with given.open(one) as source, target.open("xb") as file:
                        total = _copy(source, file, total)  # type: ignore[arg-type]
                        os.fchmod(file.fileno(), 0o755 if mode & 0o111 else 0o644)
    # `zipfile` raises these too: for offsets before the file or far behind it, and for names that are empty or no UTF-8.
    except (*_NO_ARCHIVE, ValueError, OverflowError, IndexError, struct.error) as error:
        raise _unreadable(error) from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # seeking before the beginning
            raise
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> Invalid:
    return Invalid(f"The archive cannot be read: {error}.", remedy="Make it anew, without a password.")


def _copy(source: BinaryIO, file: BinaryIO, total: int) -> int:
    while piece := source.read(_CHUNK):
        total += len(piece)
        if total > LIMIT_BYTES:
            raise Invalid(
                f"The archive holds more than {format_size(LIMIT_BYTES)}.", remedy="Leave data out, and name them as inputs."
            )
        file.write(piece)
    return total
