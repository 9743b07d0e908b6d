"""Which system calls are refused inside: those that reach the kernel's own state, keys that others may have, other terminals,
leases on files that others open, and sockets of families that lead past the walls (AF_VSOCK to the machine's hypervisor) or that
no job needs.

clone3(2) is as if the kernel had none, and libraries use clone(2): by a descriptor of a directory it puts a process into another
control group, and that the mount is read-only changes nothing.

A filter is a program of classic BPF (seccomp(2)): load the architecture, load the number, compare, answer.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANSWER = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in struct seccomp_data; the lower halves of arguments
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
#: Commands of fcntl(2). A lease keeps open(2) by others waiting for 45 s (`fs.lease-break-time`); a process may have one on each
#: file of its user that it can read: the lab's programs.
_F_SETLEASE, _F_SETDELEG = 1024, 1040
_CLONE3 = 435
_X32 = 0x40000000

#: Families of sockets that are left (address_families(7)); all others are as if the kernel had none.
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)

#: Machine -> the architecture's number for audits, those of ioctl, fcntl, socket and socketpair(2), and those that are refused.
_MACHINES: dict[str, tuple[int, tuple[int, int, int, int], dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        (16, 72, 41, 53),
        {
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "bpf": 321,
            "kexec_load": 246,
            "kexec_file_load": 320,
            "init_module": 175,
            "finit_module": 313,
            "delete_module": 176,
            "open_by_handle_at": 304,
            "syslog": 103,
            "swapon": 167,
            "swapoff": 168,
            "acct": 163,
            "reboot": 169,
            "io_uring_setup": 425,  # what is asked for there passes no filter
            "memfd_secret": 447,  # its memory is neither in a process's numbers nor in the file's, once it is no longer mapped
        },
    ),
    "aarch64": (
        0xC00000B7,
        (29, 25, 198, 199),
        {
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "bpf": 280,
            "kexec_load": 104,
            "kexec_file_load": 294,
            "init_module": 105,
            "finit_module": 273,
            "delete_module": 106,
            "open_by_handle_at": 265,
            "syslog": 116,
            "swapon": 224,
            "swapoff": 225,
            "acct": 89,
            "reboot": 142,
            "io_uring_setup": 425,
            "memfd_secret": 447,
        },
    ),
}


def filter_program(machine: str = "") -> bytes:
    """Return the filter for this machine, b"" for one whose numbers are not known here."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return b""
    architecture, (ioctl, fcntl, *makes_sockets), refused = known
    numbers = sorted(refused.values())
    refuse = _step(_ANSWER, _REFUSE | errno.EPERM)
    lines = [
        _step(_LOAD, _ARCHITECTURE),
        _jump(_EQUAL, architecture, 1, 0),
        refuse,  # programs for another architecture would have other numbers
        _step(_LOAD, _NUMBER),
        _jump(_AT_LEAST, _X32, 0, 1),
        refuse,
    ]
    for number in numbers:
        lines += [_jump(_EQUAL, number, 0, 1), refuse]
    lines += [_jump(_EQUAL, _CLONE3, 0, 1), _step(_ANSWER, _REFUSE | errno.ENOSYS)]
    none = _step(_ANSWER, _REFUSE | errno.EAFNOSUPPORT)
    allow = _step(_ANSWER, _ALLOW)
    for number in makes_sockets:
        left = [step for family in FAMILIES for step in (_jump(_EQUAL, family, 0, 1), allow)]
        lines += [_jump(_EQUAL, number, 0, len(left) + 2), _step(_LOAD, _FIRST), *left, none]
    for number, commands in ((ioctl, (_TIOCSTI, _TIOCLINUX)), (fcntl, (_F_SETLEASE, _F_SETDELEG))):
        left = [step for command in commands for step in (_jump(_EQUAL, command, 0, 1), refuse)]
        lines += [_jump(_EQUAL, number, 0, len(left) + 2), _step(_LOAD, _SECOND), *left, allow]
    return b"".join([*lines, allow])


def _step(code: int, value: int) -> bytes:
    return struct.pack("HBBI", code, 0, 0, value)


def _jump(code: int, value: int, yes: int, no: int) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)
