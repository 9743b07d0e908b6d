"""How much room the first cell of a process should have."""

from __future__ import annotations

from collections.abc import Sequence

#: Of the kernels seen so far, this share took no more than what the first cell of another should have.
_MOST = 0.75


def first_room(peaks: Sequence[int]) -> int:
    """Bytes that the first cell of a process should have, by the most that others were seen to take; 0: none was seen yet."""
    return sorted(peaks)[min(len(peaks) - 1, int(len(peaks) * _MOST))] if peaks else 0
