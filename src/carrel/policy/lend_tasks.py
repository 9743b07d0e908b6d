"""When a task gives its devices to a cell for a while: its class lets it, it has had its turn, and it has kept its share."""

from __future__ import annotations

from carrel.domain.lease import LendingRules, Lent, Residency, Tenant

_NEVER = float("inf")
#: A task that was moved away for a cell computes for so many times what its moves take before it is moved away again.
WORTH_MOVING = 4


def lends_from(lease: Lent, holder: Tenant, rules: LendingRules, *, moves: bool) -> float:
    """Unix seconds from which the task may be paused for a cell; infinite where only its end gives the devices back.

    `moves`: its state has to leave the device for that. Then its turn is long enough to be worth two moves.
    """
    if not lease.lends or holder.residency is not Residency.RESIDENT or not holder.suspendable:
        return _NEVER
    turn = rules.task_turn
    if moves and rules.move_rate:
        turn = max(turn, WORTH_MOVING * 2 * sum(holder.state.values()) / rules.move_rate)
    lent_so_far = max(0.0, lease.since - lease.began - lease.computed)
    if lent_so_far <= 0.0:
        return lease.since + turn
    if rules.task_share >= 1.0:
        return _NEVER
    return max(lease.since + turn, lease.began + lent_so_far / (1.0 - rules.task_share))
