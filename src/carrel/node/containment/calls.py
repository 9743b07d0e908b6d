"""System calls that Python has no functions for. Each raises `OSError` that names the call and what it was about.

Sources: unshare(2), mount(2), open_tree(2), move_mount(2), mount_setattr(2), pivot_root(2), umount2(2), prctl(2), capset(2),
landlock(7), seccomp(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

NEW_NAMESPACE = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "pid": 0x20000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "net": 0x40000000,
}
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 0x1, 0x2, 0x4

_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 0x1, 0o2000000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
#: The same on all architectures (asm-generic numbers since Linux 5.1).
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 428, 429, 442, 444, 446
#: Not among those: it is older (asm/unistd.h).
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}
_MNT_DETACH = 2
_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR = 38, 24, 22, 47, 4
_PR_CAP_AMBIENT_RAISE = 2
#: The right to change one's root (capabilities(7)).
CAP_SYS_CHROOT = 18
_SECCOMP_MODE_FILTER = 2
_LANDLOCK_VERSION = 1
#: Abstract unix sockets and signals of processes outside (landlock(7), ABI 6).
_LANDLOCK_SCOPED = 0x1 | 0x2
_CAP_VERSION_3, _LAST_CAP = 0x20080522, 63

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def unshare(*names: str) -> None:
    """Leave these namespaces for new ones. Raises `BlockingIOError` where the user has as many as it may have at once."""
    flags = sum(NEW_NAMESPACE[name] for name in names)
    try:
        _checked(_libc.unshare(flags), f"new namespaces ({', '.join(names)})")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        most = Path("/proc/sys/user/max_user_namespaces").read_text().strip()
        said = f"the lab's Unix user has all namespaces that it may have here (sysctl user.max_user_namespaces is {most})"
        raise OSError(errno.EPERM if most == "0" else errno.EAGAIN, said, error.filename) from None


def map_user(user: int, group: int) -> None:
    """In a new user namespace: be who one was before (nobody knows that any more inside); everybody else is nobody."""
    for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        fd = os.open(f"/proc/self/{file}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mount a new file system."""
    result = _libc.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode() or None)
    _checked(result, f"{kind} at {target}")


def make_private() -> None:
    """Nothing that is mounted from now on is seen outside, nor the other way round."""
    _checked(_libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "private mounts")


def clone_tree(path: str) -> int:
    """A descriptor of what is mounted at `path`, with all below it, which goes nowhere yet."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    return _checked(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), ctypes.c_uint(flags)), path)


def place_tree(tree: int, target: str) -> None:
    """Put what `clone_tree` gave at `target`, over what is there."""
    result = _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH))
    _checked(result, target)


def set_attributes(where: str | int, *, on: int, recursive: bool = True) -> None:
    """Set attributes of the mount at a path, or of a tree's descriptor, and of all below it."""
    about = struct.pack("QQQQ", on, 0, 0, 0)
    start, path, flags = (where, b"", _AT_EMPTY_PATH) if isinstance(where, int) else (_AT_FDCWD, os.fsencode(where), 0)
    flags |= _AT_RECURSIVE if recursive else 0
    result = _libc.syscall(_MOUNT_SETATTR, start, path, ctypes.c_uint(flags), about, ctypes.c_size_t(len(about)))
    _checked(result, f"attributes of {where}")


def pivot_root(new: str, old: str) -> None:
    """Make the mount at `new` the root, and put the old root at `old` (pivot_root(2))."""
    machine = os.uname().machine
    if machine not in _PIVOT_ROOT:
        raise OSError(errno.ENOSYS, f"not known for processors of type {machine}", "pivot_root")
    _checked(_libc.syscall(_PIVOT_ROOT[machine], os.fsencode(new), os.fsencode(old)), "pivot_root")


def unmount(target: str) -> None:
    """Take what is mounted at `target`, and all below it, out of sight at once."""
    _checked(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"unmounting {target}")


def drop_privileges(keep: int | None = None) -> None:
    """Hold no capability, and never gain one: not by what is executed either. `keep` is the one that stays, and is passed on."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR, 0, 0, 0)
    header = struct.pack("Ii", _CAP_VERSION_3, 0)
    kept = 0 if keep is None else 1 << keep
    if kept:  # what is not in the bounding set cannot be made inheritable
        now = ctypes.create_string_buffer(24)
        _checked(_libc.capget(header, now), "capabilities")
        effective, permitted, inheritable, *upper = struct.unpack("IIIIII", now.raw)
        _checked(_libc.capset(header, struct.pack("IIIIII", effective, permitted, inheritable | kept, *upper)), "capabilities")
    for number in range(_LAST_CAP + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # there is no such capability in this kernel
    # Effective, permitted and inheritable; then the same of those above 31.
    _checked(_libc.capset(header, struct.pack("IIIIII", kept, kept, kept, 0, 0, 0)), "capabilities")
    if keep is not None:
        _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, keep, 0, 0), "capabilities")


def landlock_version() -> int:
    """The version of Landlock's interface, 0 where the kernel has none."""
    found = int(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION)))
    return max(0, found)


def scope_with_landlock() -> None:
    """From now on no abstract socket of processes outside can be reached, and no signal sent to them. Needs version 6."""
    attributes = struct.pack("QQQ", 0, 0, _LANDLOCK_SCOPED)
    rules = _checked(_libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)), "Landlock")
    _checked(_libc.syscall(_LANDLOCK_RESTRICT, rules, ctypes.c_uint(0)), "Landlock")
    os.close(rules)


def filter_calls(program: bytes) -> None:
    """Install a filter for system calls (struct sock_filter, 8 bytes each)."""
    buffer = ctypes.create_string_buffer(program, len(program))
    about = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, about, 0, 0), "seccomp")


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result
