"""Which system calls are refused inside: those that reach the kernel's own state, keys that others may have, and other terminals.

A filter is a program of classic BPF (seccomp(2)): load the architecture, load the number, compare, answer.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANSWER = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _SECOND = 0, 4, 24  # offsets in struct seccomp_data; the second argument's lower half
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_X32 = 0x40000000

#: Machine -> the architecture's number for audits, that of ioctl(2), and those that are refused.
_MACHINES: dict[str, tuple[int, int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        16,
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
        },
    ),
    "aarch64": (
        0xC00000B7,
        29,
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
        },
    ),
}


def filter_program(machine: str = "") -> bytes:
    """Return the filter for this machine, b"" for one whose numbers are not known here."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return b""
    architecture, ioctl, refused = known
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
    lines += [
        _jump(_EQUAL, ioctl, 0, 4),
        _step(_LOAD, _SECOND),
        _jump(_EQUAL, _TIOCSTI, 1, 0),
        _jump(_EQUAL, _TIOCLINUX, 0, 1),
        refuse,
        _step(_ANSWER, _ALLOW),
    ]
    return b"".join(lines)


def _step(code: int, value: int) -> bytes:
    return struct.pack("HBBI", code, 0, 0, value)


def _jump(code: int, value: int, yes: int, no: int) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)
