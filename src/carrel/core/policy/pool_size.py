"""How many workers a pool should have. Pure."""

from __future__ import annotations


def workers_missing(*, waiting: int, running: int, workers: int, least: int, most: int) -> int:
    """Return how many workers to start for `waiting` and `running` calls beside the `workers` that are there or on their way.

    A worker carries out one call at a time. A pool never has fewer than `least` and never more than `most`.
    """
    wanted = min(most, max(least, waiting + running))
    return max(0, wanted - workers)


def may_leave(*, idle: float, idle_time: float, workers: int, least: int, closed: bool) -> bool:
    """True when a worker that has had nothing to do for `idle` seconds is not needed any more."""
    return closed or (idle >= idle_time and workers > least)
