"""Strict modes, as sshd has them (sshd_config(5)): what nobody but root and its user could put another in the place of.

A path is walked component by component, each opened relative to the one before (openat(2), O_NOFOLLOW) and judged by what the
descriptor says (fstat(2)), so that nothing that is renamed meanwhile changes the answer. Each component, links too, has to
belong to root or to the user, and each directory on the way may be written by nobody else. One that all may write is good enough
as a parent where it is sticky: then others can make things in it, but not rename what belongs to the user (rename(2)).
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Denied, Unavailable

#: Links that one path may lead through (path_resolution(7)).
_LINKS = 40
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Trusted:
    """What a path led to when it was checked."""

    path: Path
    device: int
    inode: int
    #: Who may own it and what it lies in.
    owners: frozenset[int]
    #: True when nobody else may even look into it.
    private: bool = False

    def check(self) -> None:
        """Walk the path again. Raises `Denied` when others could have changed it meanwhile, or it leads elsewhere."""
        again = trusted_directory(self.path, owners=self.owners, private=self.private)
        if (again.device, again.inode) != (self.device, self.inode):
            raise Denied(f"{self.path} is not the directory any more that it was.", remedy="Find out who moved it.")


def trusted_directory(path: Path, *, owners: Set[int] = frozenset(), make: bool = False, private: bool = False) -> Trusted:
    """Return what `path` is, having walked there. Raises `Denied` with what others could change, `Unavailable` where it is not.

    `owners` are those who may own it and what it lies in: without them root, and the user of this process. What is missing is
    made on the way for `make`, mode 0700. A `private` one has to be its owner's alone.
    """
    owners = frozenset(owners or (0, os.geteuid()))
    try:
        fd = _walk(path, owners, make=make)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be used: {error.strerror} ({error.filename}).", remedy="It is made where its parent may be written."
        ) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISDIR(found.st_mode):
            raise Denied(f"{path} is no directory.", remedy="Move it away.")
        if why := _written_by_others(fd, found, owners):
            raise Denied(f"{path} {why}.", remedy=f"chmod go-w {path}")
        if private and (found.st_mode & 0o077 or found.st_uid != os.geteuid()):
            user = _name(os.geteuid())
            raise Denied(f"{path} is not a directory that only {user} can use.", remedy=f"chmod go= {path}, or move it away.")
        return Trusted(path, found.st_dev, found.st_ino, owners, private)
    finally:
        os.close(fd)


def open_trusted(path: Path, *, owners: Set[int] = frozenset()) -> int:
    """Return a descriptor for reading a file that nobody but `owners` could have written; the caller closes it.

    Raises `Denied` with what others could change, and `OSError` for what cannot be opened.
    """
    fd = _file(path, owners)
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def check_file(path: Path, *, owners: Set[int] = frozenset()) -> None:
    """Raise `Denied` unless nobody but `owners` could have written the file, such as a program that is to be run."""
    os.close(_file(path, owners))


def _file(path: Path, owners: Set[int]) -> int:
    owners = frozenset(owners or (0, os.geteuid()))
    fd = _walk(path, owners)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Denied(f"{path} is no file.", remedy="Move it away.")
        if why := _written_by_others(fd, found, owners):
            raise Denied(f"{path} {why}.", remedy=f"chmod go-w {path}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _walk(path: Path, owners: Set[int], *, make: bool = False) -> int:
    """Return a descriptor (O_PATH) of what `path` leads to, through what can be trusted."""
    if not path.is_absolute():
        raise ValueError(f"{path} does not say where it begins")
    ahead = list(reversed(path.parts[1:]))
    way = [("/", os.open("/", _LOOK))]
    links = 0
    try:
        while ahead:
            name = ahead.pop()
            if name == "..":
                if len(way) > 1:
                    os.close(way.pop()[1])
                continue
            parent = way[-1][1]
            place = f"{'/'.join(step for step, _ in way).removeprefix('/')}/{name}"
            fd = _open_in(parent, name, place, make=make)
            way.append((name, fd))
            found = os.fstat(fd)
            _judge(parent, place, found, owners)
            if stat.S_ISLNK(found.st_mode):
                links += 1
                if links > _LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                target = Path(os.readlink("", dir_fd=fd))
                os.close(way.pop()[1])
                ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                if target.is_absolute():
                    while len(way) > 1:
                        os.close(way.pop()[1])
        return os.dup(way[-1][1])
    finally:
        for _, fd in way:
            os.close(fd)


def _open_in(parent: int, name: str, place: str, *, make: bool) -> int:
    try:
        with suppress(FileNotFoundError):
            return os.open(name, _LOOK, dir_fd=parent)
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
        return os.open(name, _LOOK, dir_fd=parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, place) from error


def _judge(parent: int, place: str, found: os.stat_result, owners: Set[int]) -> None:
    """Raise `Denied` when others could put something else in the place of what was found at `place`, in `parent`."""
    if found.st_uid not in owners:
        raise Denied(
            f"{place} belongs to {_name(found.st_uid)}, who could put anything there.",
            remedy=f"It has to belong to {_names(owners)}: move it away, or choose another directory.",
        )
    around = os.fstat(parent)
    if not stat.S_ISDIR(around.st_mode) or around.st_mode & stat.S_ISVTX:
        return
    if why := _written_by_others(parent, around, owners):
        above = os.path.dirname(place) or "/"  # noqa: PTH120 - a text
        raise Denied(
            f"{above} {why}, who could put another {os.path.basename(place)} there.",  # noqa: PTH119
            remedy=f"chmod go-w {above}, or where all have to write there: chmod +t {above}",
        )


def _written_by_others(fd: int, found: os.stat_result, owners: Set[int]) -> str:
    """Return by whom else it may be written, in words; "" for nobody. Of an access list the group's bits are the mask."""
    if found.st_mode & stat.S_IWOTH:
        return "may be written by everybody"
    if found.st_mode & stat.S_IWGRP and not _own_group(fd, found.st_gid, owners):
        try:
            group = grp.getgrgid(found.st_gid).gr_name
        except KeyError:
            group = str(found.st_gid)
        return f"may be written by the group {group}"
    return ""


def _own_group(fd: int, gid: int, owners: Set[int]) -> bool:
    """Return whether a group is that of one owner alone, as many systems make for each user, and no access list adds others."""
    with suppress(OSError):
        os.getxattr(f"/proc/self/fd/{fd}", "system.posix_acl_access")
        return False
    for uid in owners:
        with suppress(KeyError):
            account, group = pwd.getpwuid(uid), grp.getgrgid(gid)
            if account.pw_gid == gid and group.gr_name == account.pw_name and set(group.gr_mem) <= {account.pw_name}:
                return True
    return False


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _names(owners: Set[int]) -> str:
    return " or ".join(_name(uid) for uid in sorted(owners))
