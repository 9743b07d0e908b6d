"""What somebody reads who waits for a window that is kept for others."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.core.domain.placement import Waiting
from carrel.core.domain.reservation import FOR_EVER, Reservation
from carrel.core.domain.units import format_duration
from carrel.core.policy.allowed_nodes import AllowedNodes
from carrel.core.policy.node_capacity import NodeCapacity


def explain_window(job: Waiting, rooms: Sequence[NodeCapacity], missing: int, allowed_nodes: AllowedNodes, now: float) -> str:
    """Name the window that keeps `job` off `rooms`, of which it needs `missing`, and the longest job that could go before it."""
    ends_by = now + job.longest
    first = {
        room.index: next(window for window in allowed_nodes.windows[room.index] if window.begin < ends_by and window.end > now)
        for room in rooms
    }
    # Of the rooms that it needs, the one that is kept first says how short it would have to be.
    latest = sorted(first.values(), key=lambda window: -window.begin)
    kept = latest[min(max(missing, 1), len(latest)) - 1]
    here = [room for room in rooms if first[room.index] is kept]
    where = here[0].name if len(here) == 1 else f"{len(here)} nodes"
    if allowed_nodes.partition:
        where += f' of partition "{allowed_nodes.partition}"'
    needs = f"needs {job.resources.describe()}; {where} {'is' if len(here) == 1 else 'are'} {_kept(kept, now)}"
    if kept.begin <= now:
        return needs
    return f"{needs}; a job of at most {format_duration(_less(max(0.0, kept.begin - now - job.grace)))} could start before it"


def _kept(window: Reservation, now: float) -> str:
    what = f'reservation "{window.name}"'
    if window.reason:
        what += f" ({window.reason})"
    if window.end - window.begin >= FOR_EVER:
        return (
            f"kept for {what}"
            if window.begin <= now
            else f"there for {format_duration(window.begin - now)} more ({window.reason})"
        )
    if window.begin <= now:
        return f"kept for {what} for {format_duration(window.end - now)} more"
    return f"kept for {what} in {format_duration(window.begin - now)}, for {format_duration(window.end - window.begin)}"


def _less(seconds: float) -> float:
    """So much less that what is written is never more."""
    unit = 1 if seconds < 300 else 60 if seconds < 86400 else 3600
    return seconds // unit * unit
