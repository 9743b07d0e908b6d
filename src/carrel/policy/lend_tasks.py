"""When a task gives its devices to a cell for a while, and when it has them back.

It gives them when its class lets it, when it has had its turn, and when it has kept its share. A task that is paused goes on
as soon as no cell wants its devices, and takes them back from a cell only as far as it has had less than its share.
"""

from __future__ import annotations

from carrel.domain.lease import LendingRules, Lent, Request, Residency, Tenant

_NEVER = float("inf")
#: A task that was moved away for a cell computes for so many times what its moves take before it is moved away again.
WORTH_MOVING = 4


def lends_from(lease: Lent, holder: Tenant, rules: LendingRules, *, moves: bool, begins: bool = True) -> float:
    """Unix seconds from which the task may be paused for a cell; infinite where only its end gives the devices back.

    `moves`: its state has to leave the device for that. Then its turn is long enough to be worth two moves. `begins`: the cell
    has not computed yet. It waits for the task's turn only; one that was paused for the task waits until that has its share.
    """
    if not lease.lends or holder.residency is not Residency.RESIDENT or not holder.suspendable:
        return _NEVER
    turn = rules.task_turn
    if moves and rules.move_rate:
        # Each device has a bus of its own.
        turn = max(turn, WORTH_MOVING * 2 * max(holder.state.values(), default=0) / rules.move_rate)
    lent_so_far = max(0.0, lease.since - lease.began - lease.computed)
    if begins or lent_so_far <= 0.0:
        return lease.since + turn
    if rules.task_share >= 1.0:
        return _NEVER
    return max(lease.since + turn, lease.began + lent_so_far / (1.0 - rules.task_share))


def owed_from(lease: Lent, rules: LendingRules) -> float:
    """Unix seconds from which a task that is paused has had less than its share; infinite where it keeps none."""
    return lease.began + lease.computed / rules.task_share if rules.task_share > 0 else _NEVER


def stands_back(request: Request, lease: Lent | None, rules: LendingRules, now: float) -> bool:
    """True for a task that lent its devices and has had its share: cells go first, and nothing is kept from them for it."""
    return request.exclusive and lease is not None and lease.lends and owed_from(lease, rules) > now
