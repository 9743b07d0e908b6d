"""Into which slices GPUs can be cut, for those whose driver is not there to be asked."""

from __future__ import annotations

from carrel.core.domain.fabric import SliceProfile
from carrel.core.domain.units import GIB

#: Compute slices and memory slices of a GPU that can be cut into seven.
COMPUTE, MEMORY = 7, 8
#: Compute slices, memory slices, and where one may begin (NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles").
_SHAPES = ((1, 1, range(7)), (1, 2, range(0, 8, 2)), (2, 2, range(0, 6, 2)), (3, 4, range(0, 8, 4)), (4, 4, (0,)), (7, 8, (0,)))


def slice_profiles(memory: int) -> tuple[SliceProfile, ...]:
    """Return the profiles of a GPU with so many bytes (A100, H100, H200, B200); NVIDIA names them by rounded GiB."""
    return tuple(
        SliceProfile(
            name=f"{compute}g.{_gigabytes(memory, slices)}gb",
            compute=compute,
            memory_slices=slices,
            memory=memory * slices // MEMORY,
            starts=tuple(starts),
        )
        for compute, slices, starts in _SHAPES
    )


def _gigabytes(memory: int, slices: int) -> int:
    return int(memory * slices / MEMORY / GIB + 0.5)
