"""What NVIDIA's Xid errors say about the GPU.

From NVIDIA's catalog, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (read in November 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Errors after which the catalog wants the GPU to be reset or the machine to be started again, and those of its memory and links.
FAULTS: Mapping[int, str] = MappingProxyType(
    {
        46: "it stopped processing",
        48: "uncorrectable memory error (double bit ECC)",
        62: "its internal micro-controller halted",
        63: "memory rows or pages are being replaced",
        64: "memory rows or pages could not be replaced",
        74: "NVLink error",
        79: "it has fallen off the bus",
        92: "many corrected memory errors",
        94: "uncorrectable memory error, contained",
        95: "uncorrectable memory error, not contained",
        109: "context switch timeout",
        110: "security fault",
        119: "its system processor (GSP) does not answer",
        120: "error of its system processor (GSP)",
        136: "link training failed",
        140: "uncorrectable memory error",
        143: "it could not be initialised",
    }
)
#: Errors for which the catalog has the program started again, or nothing done. 154 announces what NVML's recovery action says.
_OF_PROGRAMS = frozenset(
    (
        *(8, 11, 13, 14, 25, 31, 32, *range(37, 42), 43, 44, 45, 60, *range(66, 73), 75, 76, 77, 80, *range(82, 90), 93),
        *(*range(96, 109), 121, *range(126, 136), 137, 139, 141, 154),
    )
)


def fault_of(xid: int) -> str:
    """Return what is wrong with the GPU; "" for an error of the program. An error in neither list is not known to be harmless."""
    if xid in _OF_PROGRAMS:
        return ""
    return f"Xid {xid}: {FAULTS.get(xid, 'an error that Carrel does not know')}"
