"""Directories that a job has filled: looked through, measured and removed.

They may be deeper than a path can be long, hold links to anywhere, and be closed to their owner. So nothing here recurses, and
nothing is opened by a path: one descriptor goes down by one name at a time (openat(2), O_NOFOLLOW) and up again. A directory that
was moved away meanwhile leads it nowhere else.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A directory is not there any more, or something else is in its place.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a directory."""

    name: str
    about: os.stat_result
    #: A descriptor of the directory that it is in; good until the next entry is asked for.
    within: int
    #: The directories from the top to the one that it is in; good for as long.
    way: Sequence[_Level]

    @property
    def path(self) -> str:
        """Its path below the top; good for as long. As long as it is deep, so not for trees without a limit of depth."""
        return _path(self.way, self.name)

    @property
    def is_directory(self) -> bool:
        """True for a directory, and not for a link to one."""
        return stat.S_ISDIR(self.about.st_mode)


@dataclass(slots=True)
class _Level:
    """A directory on the way down."""

    name: str
    about: os.stat_result
    #: Directories in it that are still to be looked into; None before they are known.
    inner: list[str] | None = None


def entries_below(
    path: str | Path,
    *,
    within: int | None = None,
    open_up: bool = False,
    ordered: bool = False,
    enter: Callable[[Entry], bool] = lambda _entry: True,
    closed: Callable[[str], object] = lambda _path: None,
) -> Iterator[Entry]:
    """Yield all that is below a directory, each directory after what is in it. What vanishes meanwhile is left out.

    `within` is a descriptor that `path` begins at. `open_up` gives their owner every right to the directories. `ordered`: by
    name, what is in a directory before what is below it. A directory that `enter` refuses is not looked into. `closed` is called
    with the path below the top of each that cannot be. Nothing is yielded where `path` is no directory.
    """
    try:
        top = _open(os.fspath(path), within, open_up=open_up)
    except OSError as error:
        if error.errno not in _GONE:
            closed("")
        return
    here = os.dup(top)
    try:
        way = [_Level("", os.fstat(top))]
        while way:
            level = way[-1]
            if level.inner is None:
                level.inner = []
                for entry in _entries(here, way, closed, ordered=ordered):
                    if entry.is_directory and enter(entry):
                        level.inner.append(entry.name)
                    else:
                        yield entry
                level.inner.reverse()  # the last one is next
            elif level.inner:
                name = level.inner.pop()
                try:
                    below = _open(name, here, open_up=open_up)
                except OSError as error:
                    if error.errno not in _GONE:
                        closed(_path(way, name))
                        with suppress(OSError):
                            yield Entry(name, os.stat(name, dir_fd=here, follow_symlinks=False), here, way)
                    continue
                os.close(here)
                here = below
                way.append(_Level(name, os.fstat(here)))
            else:
                way.pop()
                if way:
                    here, whole = _up(here, top, way)
                    if whole:
                        yield Entry(level.name, level.about, here, way)
    finally:
        os.close(here)
        os.close(top)


def remove_tree(path: str | Path, *, within: int | None = None) -> None:
    """Remove a directory with all that is below it, also what its owner may not read or empty; what cannot be removed stays.

    A link in its place stays, with what it leads to. `within` is a descriptor that `path` begins at.
    """
    for entry in entries_below(path, within=within, open_up=True):
        with suppress(OSError):
            (os.rmdir if entry.is_directory else os.unlink)(entry.name, dir_fd=entry.within)
    with suppress(OSError):
        os.rmdir(path, dir_fd=within)


@contextmanager
def scratch_directory(place: Path) -> Iterator[Path]:
    """Make a directory in `place` for what others' programs fill, and remove it with all that they left."""
    made = Path(tempfile.mkdtemp(dir=place))
    try:
        yield made
    finally:
        remove_tree(made)


def room_of(path: str | Path, seen: set[tuple[int, int]] | None = None) -> int:
    """Return the bytes on the disk of a file, or of a directory and all below it, each file once. Links are not followed.

    `seen` has the files that were counted before, and gets those that are counted now.
    """
    seen = set() if seen is None else seen
    try:
        total = _take(os.lstat(path), seen)
    except OSError:
        return 0
    return total + sum(_take(entry.about, seen) for entry in entries_below(path))


def _take(about: os.stat_result, seen: set[tuple[int, int]]) -> int:
    if stat.S_ISDIR(about.st_mode) or about.st_nlink > 1:
        key = about.st_dev, about.st_ino
        if key in seen:
            return 0
        seen.add(key)
    return about.st_blocks * 512


def _entries(directory: int, way: Sequence[_Level], closed: Callable[[str], object], *, ordered: bool) -> Iterator[Entry]:
    try:
        with os.scandir(directory) as found:
            for one in sorted(found, key=_name) if ordered else found:
                try:
                    yield Entry(one.name, one.stat(follow_symlinks=False), directory, way)
                except FileNotFoundError:
                    continue
    except OSError:
        closed(_path(way[:-1], way[-1].name))


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _path(way: Sequence[_Level], name: str) -> str:
    return "/".join([*(level.name for level in way[1:]), name])


def _open(name: str, within: int | None, *, open_up: bool) -> int:
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=within)
    except PermissionError:
        if not open_up:
            raise
        place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
        try:
            Path(f"/proc/self/fd/{place}").chmod(0o700)  # the directory itself, whatever has its name by now
        finally:
            os.close(place)
        return os.open(name, _DIRECTORY, dir_fd=within)
    if open_up and os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        with suppress(OSError):
            os.fchmod(fd, 0o700)
    return fd


def _up(here: int, top: int, way: list[_Level]) -> tuple[int, bool]:
    """Go to the last directory of `way`; return it, and True. One that is not above any more is looked for by its name.

    Where it is not found, the way ends before it, and that is returned with False.
    """
    with suppress(OSError):
        above = os.open("..", _DIRECTORY, dir_fd=here)
        if os.path.samestat(os.fstat(above), way[-1].about):
            os.close(here)
            return above, True
        os.close(above)
    start = os.dup(top)
    os.close(here)
    here = start
    for number, level in enumerate(way[1:], 1):
        try:
            below = _open(level.name, here, open_up=False)
        except OSError:
            below = -1
        if below < 0 or not os.path.samestat(os.fstat(below), level.about):
            if below >= 0:
                os.close(below)
            del way[number:]
            return here, False
        os.close(here)
        here = below
    return here, True
