"""What the lab's Unix user alone may read of its machine, outside of the lab's home.

Jobs run as this user, so that the modes of files keep nothing from them: what the lab's settings and variables name is covered
by name, and other files and directories as far as they are found by a bounded look (`look`).
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

#: Settings that name what is for jobs.
_FOR_JOBS = frozenset({"rucio_path", "slurm_image_paths"})
#: Where nobody keeps files of their own, or jobs have others.
_NOT_LOOKED_AT = ("/proc", "/sys", "/dev", "/run", "/tmp", "/usr", "/boot", "/nix", "/snap")
#: File systems that mount others when they are looked into.
_MOUNT_OTHERS = frozenset({"autofs"})
#: How many links the kernel follows (path_resolution(7)).
_MOST_LINKS = 40
_PATH = re.compile(r"(?:^|[:=,\s])/{0,2}(/[^:=,\s?&;]+)")


def named_in(value: Any) -> Iterator[str]:
    """Yield the paths in all texts of a value: of settings, rules, variables."""
    if isinstance(value, str):
        yield from _PATH.findall(value)
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from named_in(one) if name not in _FOR_JOBS else ()
    elif is_dataclass(value):
        for field in fields(value):
            yield from named_in(getattr(value, field.name))
    elif isinstance(value, Iterable) and not isinstance(value, bytes):
        for one in value:
            yield from named_in(one)


def closed_to_others(names: Iterable[str]) -> Iterator[str]:
    """Yield those of the names that lead to what is there and other users of the machine may not read."""
    for name in dict.fromkeys(names):
        path = os.path.realpath(name)
        if path.startswith("/tmp/"):  # jobs have one of their own
            continue
        try:
            about = Path(path).stat()
            above = [parent.stat().st_mode for parent in Path(path).parents]
        except OSError:
            continue
        readable = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(about.st_mode) else 0)
        if about.st_mode & readable != readable or not all(mode & stat.S_IXOTH for mode in above):
            yield name


def directories_of(name: str) -> Iterator[str]:
    """Yield the directories in which a file lies that a name leads to, and each link on the way.

    Another entry in one of them is another file under that name: a renewed certificate is a new file with the old name, or a
    link that leads elsewhere.
    """
    place, todo, links = "/", deque(Path(os.path.abspath(name)).parts[1:]), 0  # noqa: PTH100 - links stay
    while todo and links < _MOST_LINKS:
        step = os.path.normpath(os.path.join(place, todo.popleft()))  # noqa: PTH118 - ".." after links
        try:
            leads = os.readlink(step)  # noqa: PTH115
        except OSError:
            place = step
            continue
        yield place
        todo.extendleft(reversed(Path(leads).parts))  # an absolute one begins with "/"
        links += 1
    if not os.path.isdir(place):  # noqa: PTH112
        yield str(Path(place).parent)


def secret_files(*said: Any) -> list[str]:
    """What is named in settings and rules and other users of the machine may not read."""
    return list(closed_to_others(named_in(said)))


def own_homes() -> tuple[str, ...]:
    """The home directories of the lab's user, by its variables and by the machine's list of users."""
    found = [str(Path.home())]
    with suppress(KeyError, OSError):  # users of services have a directory of the system there, or none
        listed = pwd.getpwuid(os.getuid()).pw_dir
        found += [listed] if Path(listed).stat().st_uid == os.getuid() else []
    return tuple(dict.fromkeys(os.path.realpath(path) for path in found if path != "/"))


@dataclass(frozen=True, slots=True)
class Look:
    """What a bounded look has found."""

    #: Files and directories of this user that have no rights for anybody else.
    private: Sequence[str]
    #: Others that this user may read, and not everybody.
    shared: Sequence[str]
    #: Directories that were not looked into any more.
    left: int


def look(passed: Iterable[str], *, levels: int, seconds: float, entries: int, top: str = "/") -> Look:
    """Look for private files below `top`, so many levels down, the upper ones first, and not in directories that are `passed`.

    Nothing is looked for within those that are found, nor where it cannot look, or a look would have something mounted.
    """
    until = time.monotonic() + seconds
    over, user, groups = {*passed, *_NOT_LOOKED_AT, *_mounted_on_demand()}, os.getuid(), {os.getgid(), *os.getgroups()}
    todo, private, shared = deque([(top, 1)]), list[str](), list[str]()
    while todo and entries > 0 and time.monotonic() < until:
        directory, level = todo.popleft()
        try:
            found = list(os.scandir(directory))
        except OSError:
            continue
        entries -= len(found)
        for entry in found:
            if entry.path in over or entry.is_symlink():
                continue
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            mode, own = about.st_mode, about.st_uid == user
            # By its mode alone: jobs have no capabilities, not even root's.
            mine = mode & stat.S_IRUSR if own else about.st_gid in groups and mode & stat.S_IRGRP
            if own and not mode & 0o077:
                private.append(entry.path)
            elif mine and not mode & stat.S_IROTH:
                shared.append(entry.path)
            elif stat.S_ISDIR(mode) and level < levels:
                todo.append((entry.path, level + 1))
    return Look(private, shared, len(todo))


def _mounted_on_demand() -> Iterator[str]:
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _source, place, kind, *_ = line.split(" ")
        if kind in _MOUNT_OTHERS:
            yield place
