"""When a task gives its devices to a cell for a while, and when it has them back.

It gives them when its class lets it, when it has had its turn, and when it has kept its share. A task that is paused goes on
as soon as no cell wants its devices, and takes them back from a cell only as far as it has had less than its share.

Where the walltime of a task runs on while it is paused (a Slurm cluster), the part of its time for which it may be paused is
bounded (`LendingRules.most_lent`). Then it gives them only when it has something to spare, to those alone from whom it can take
them back, and takes them back in time.
"""

from __future__ import annotations

from carrel.core.domain.lease import LendingRules, Lent, Request, Residency, Tenant

_NEVER = float("inf")
#: A task that was moved away for a cell computes for so many times what its moves take before it is moved away again.
WORTH_MOVING = 4
#: Seconds for which a task is paused at least, where it may be paused for a part of its time.
LEAST = 1.0
#: Seconds before the end of a walltime that runs on in which the task is left alone: it may have to write a checkpoint.
LAST = 300.0


def lends_from(
    lease: Lent, holder: Tenant, rules: LendingRules, *, moves: bool, begins: bool = True, visit: float = 0.0
) -> float:
    """Unix seconds from which the task may be paused for a cell; infinite where only its end gives the devices back.

    `moves`: its state has to leave the device for that. Then its turn is long enough to be worth two moves. `begins`: the cell
    has not computed yet. It waits for the task's turn only; one that was paused for the task waits until that has its share.
    `visit`: seconds for which the states of the cell and of others move that leave before the task goes on.
    """
    if not lease.lends or holder.residency is not Residency.RESIDENT or not holder.suspendable:
        return _NEVER
    turn = rules.task_turn
    # Each device has a bus of its own.
    size = max(holder.state.values(), default=0)
    away = size / rules.move_rate + size / (rules.back_rate or rules.move_rate) if moves and rules.move_rate else 0.0
    turn = max(turn, WORTH_MOVING * away)
    spares = lease.since if rules.most_lent >= 1.0 else _spares_from(lease, rules, begins=begins, moving=away + visit)
    lent_so_far = max(0.0, lease.since - lease.began - lease.used)
    if begins or lent_so_far <= 0.0:
        return max(lease.since + turn, spares)
    if rules.task_share >= 1.0:
        return _NEVER
    return max(lease.since + turn, lease.began + lent_so_far / (1.0 - rules.task_share), spares)


def can_take_back(lease: Lent, cell: Tenant, rules: LendingRules, now: float) -> bool:
    """True where nothing bounds the pauses of a task, or where it has its devices back in time from a cell of `cell`."""
    if rules.most_lent >= 1.0:
        return True
    late = lease.ends_by is not None and now + _turn(rules) > lease.ends_by - LAST
    return rules.time_slice > 0 and cell.suspendable and not late


def owed_from(lease: Lent, rules: LendingRules) -> float:
    """Unix seconds from which a task that is paused has had less than its share; infinite where it keeps none."""
    return lease.began + lease.used / rules.task_share if rules.task_share > 0 else _NEVER


def back_by(lease: Lent, rules: LendingRules, moving: float = 0.0) -> float:
    """Unix seconds at which a paused task has to get its devices back, from any holder; infinite where nothing says so.

    `moving`: seconds from then on until it computes again. They are part of its pause.
    """
    if rules.most_lent >= 1.0:
        return _NEVER
    used_up = lease.began + lease.used / (1.0 - rules.most_lent)
    return min(used_up, _NEVER if lease.ends_by is None else lease.ends_by - LAST) - moving


def stands_back(request: Request, lease: Lent | None, rules: LendingRules, now: float) -> bool:
    """True for a task that lent its devices and has had its share: cells go first, and nothing is kept from them for it."""
    return request.exclusive and lease is not None and lease.lends and owed_from(lease, rules) > now


def goes_first_from(lease: Lent, rules: LendingRules, moving: float) -> float:
    """Unix seconds from which a paused task goes before all cells: one that began would be paused before it got on.

    A cell for which it was paused has twice as long, so that nobody is paused and brought back for nothing.
    """
    return back_by(lease, rules, moving) - _turn(rules) / 2


def _turn(rules: LendingRules) -> float:
    """Seconds that are worth to be lent."""
    return max(rules.task_turn, LEAST)


def _spares_from(lease: Lent, rules: LendingRules, *, begins: bool, moving: float) -> float:
    """Unix seconds from which a task that may be paused for a part of its time has enough to spare for a cell's turn.

    That is short for a cell that begins, as most end soon, and a time slice for one that has proved to be long; and worth the
    moves, which are pauses as well.
    """
    if rules.most_lent <= 0.0:
        return _NEVER
    turn = max(_turn(rules) if begins else rules.time_slice, WORTH_MOVING * moving) + moving
    lent_so_far = max(0.0, lease.since - lease.began - lease.used)
    return lease.began + (lent_so_far + turn * (1.0 - rules.most_lent)) / rules.most_lent
