"""One week of notebooks in one mode, and how many GPUs a mode takes.

GPUs are equal, and nodes are left out: a session of 8 GPUs gets any 8 that are free. In the modes of the pool (`pool.py`) a state
fills its GPUs, and the line is strictly first come, first served: the first that does not fit holds up everybody behind it.
`by_policy.py` lends as the broker of a node does, as if all GPUs were in one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from carrel.core.domain.errors import Invalid
from carrel.simulate.notebooks.by_policy import PolicyRun
from carrel.simulate.notebooks.forming import NotebookSession
from carrel.simulate.notebooks.mode import CARREL, EAGER, LAZY, RESERVATION, Mode, PolicyMode, PoolMode, cull
from carrel.simulate.notebooks.pool import PoolRun
from carrel.simulate.notebooks.result import ModeResult, Waits

__all__ = ["CARREL", "EAGER", "LAZY", "RESERVATION", "Mode", "PolicyMode", "PoolMode", "Waits", "cull", "gpus_needed", "simulate"]

#: Seconds in which the state of one GPU is brought back; moving the state that was in its way is included.
SWAP_SECONDS = 4.0


def simulate(sessions: Sequence[NotebookSession], mode: Mode, gpus: int, *, swap_seconds: float = SWAP_SECONDS) -> ModeResult:
    """Run `sessions` on `gpus` GPUs.

    Users are a closed loop: each runs a cell their recorded think time after the one before it has ended, so a cell that is
    late makes the rest of its session late. A cell whose state is brought back, or whose GPUs have to be cleared of others'
    states, begins `swap_seconds` later for each such GPU; the GPUs are held meanwhile. A warm start costs nothing.

    Raises `Invalid` when there are no sessions, when one needs more than `gpus`, and for negative `swap_seconds`.
    """
    check(sessions, gpus, swap_seconds)
    if isinstance(mode, PolicyMode):
        return PolicyRun(sessions, mode, gpus, swap_seconds).result()
    return PoolRun(sessions, mode, gpus, swap_seconds).result()


def gpus_needed(
    sessions: Sequence[NotebookSession],
    mode: Mode,
    *,
    p95_wait: float,
    of: Waits = Waits.REQUESTS,
    swap_seconds: float = SWAP_SECONDS,
    near: int | None = None,
) -> int:
    """Return the smallest number of GPUs with which 95 of 100 waits are at most `p95_wait` seconds long, swaps apart.

    Beware of `Waits.CELLS` for modes that keep GPUs: a session that has its GPUs never waits again, so where fewer than one
    cell in twenty opens a session, 95 of 100 cells do not wait however long sessions wait to open.

    Found by bisection, so it is taken for granted that more GPUs never make the 95th percentile longer. Lists of work that
    need several GPUs at once can break that (R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969), and so do time
    slices; then the answer is still one that suffices while one GPU less does not. In `PolicyMode` with time slices this
    takes minutes: far too few GPUs mean very many pauses. `near` is where to look first, and by how much it was wrong decides
    how far.

    Raises `Invalid` for a negative `p95_wait`, and as `simulate` does.
    """
    if not p95_wait >= 0:
        raise Invalid(f"The wait is to be at most {p95_wait:g} s.", remedy="Give 0 s or more.")
    low = max((session.gpus for session in sessions), default=0)
    check(sessions, low, swap_seconds)

    def suffice(gpus: int) -> bool:
        return simulate(sessions, mode, gpus, swap_seconds=swap_seconds).wait(0.95, of) <= p95_wait

    # With GPUs for every session at once nobody ever waits.
    low, high = _around(near, low, sum(session.gpus for session in sessions), suffice)
    while low < high:
        middle = (low + high) // 2
        if suffice(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _around(near: int | None, low: int, high: int, suffice: Callable[[int], bool]) -> tuple[int, int]:
    """Narrow the bounds `low` (the least that may suffice) and `high` (which suffices) to some that lie close to `near`."""
    if near is None or not low <= near < high:
        return low, high
    step = max(1, near // 16)
    if suffice(near):
        high = near
        while high - step >= low and suffice(high - step):
            high -= step
        return max(low, high - step + 1), high
    low = near + 1
    while low + step < high and not suffice(low + step):
        low += step + 1
    return low, min(high, low + step)


def check(sessions: Sequence[NotebookSession], gpus: int, swap_seconds: float = SWAP_SECONDS) -> None:
    """Raise `Invalid` for what cannot be simulated."""
    if not sessions:
        raise Invalid("There are no sessions.", remedy="Give one or more.")
    widest = max(sessions, key=lambda session: session.gpus)
    if widest.gpus > gpus:
        raise Invalid(
            f"Session {widest.id} needs {widest.gpus} GPUs at once and there are {gpus}.",
            remedy=f"Give {widest.gpus} or more, or leave the session out.",
        )
    if swap_seconds < 0:
        raise Invalid(f"Bringing a state back takes {swap_seconds:g} s.", remedy="Give 0 s or more.")
