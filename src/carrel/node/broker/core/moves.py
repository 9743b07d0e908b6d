"""Moves of GPU state, as far as they are decided: what is asked before, what is written down, and what becomes of each ending.

A tenant's row says SUSPENDING or RESUMING from before the move until after it, so a broker that is killed in between knows
what to repeat; the driver's calls can be repeated at any point (`carrel.node.suspension.ports`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carrel.core.domain.lease import LeaseState, MoveMethod, Residency, Tier
from carrel.node.broker.core.effects import NEVER, Action, Gather, MoveBack, MoveOut, Pause, Spill, Unspill
from carrel.node.broker.core.lender import Lender, asked_again, resumption
from carrel.node.broker.core.messages import sizes_of
from carrel.node.broker.core.rates import BACK, FROM_DISK, OUT, TO_DISK
from carrel.node.broker.core.rows import LeaseRow, TenantRow
from carrel.node.leases.protocol import KERNEL, RUNNER
from carrel.node.suspension.ports import Ending, Moved, Target

#: Seconds that an idle process has to let go of what it need not keep before its state is moved.
PREPARE_SECONDS = 5.0
#: Seconds until a move that did not begin is tried again, doubled each time, and the longest pause.
_RETRY, _LONGEST_RETRY = 2.0, 60.0
_MOVING = frozenset({Residency.SUSPENDING, Residency.SPILLING, Residency.RESUMING})


@dataclass(frozen=True, slots=True)
class _Asked:
    """An idle process that was asked to let go of what it need not keep."""

    tenant: str
    #: When it is not waited for any more (Unix seconds).
    until: float
    #: Its state is moved after that.
    moves: bool


class Moves:
    """Decides about moves for the core; `actions` are what is to be done once all is written down."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        self._ledger = lender.ledger
        self._ids = itertools.count(1)
        #: Idle processes that were asked to let go of what they need not keep, by the id of the question.
        self._asked: dict[str, _Asked] = {}
        #: Tenants whose moves an earlier broker had begun, until `recover`: its last calls of the driver may still go on.
        self._begun_before: frozenset[str] = frozenset()
        self.actions: list[Action] = []

    def due(self) -> float:
        """When the first of those that were asked is not waited for any more (Unix seconds)."""
        return min((asked.until for asked in self._asked.values()), default=NEVER)

    def time_is_up(self, now: float) -> None:
        """Go on without those that have not answered."""
        for question in [name for name, asked in self._asked.items() if asked.until <= now]:
            self._prepared(question, {}, freed=False)

    # --- to host memory -----------------------------------------------------------------------------------------------------

    def suspend(self, tenant: str, pauses: str | None) -> None:
        """Move the tenant's state to host memory; its row says SUSPENDING."""
        # A runner has nothing of its task's to let go of.
        if pauses is not None or tenant not in self._lender.here or self._ledger.tenants[tenant].role == RUNNER:
            self._begin_suspend(tenant, pauses)
            return
        self._ask(tenant, moves=True)

    def trim(self, tenant: str) -> None:
        """Have the idle tenant give back what it only keeps in reserve."""
        if tenant in self._lender.here:
            self._ask(tenant, moves=False)
        else:
            self._trimmed(tenant, {}, freed=False)

    def _ask(self, tenant: str, *, moves: bool) -> None:
        question = f"prepare-{next(self._ids)}"
        self._asked[question] = _Asked(tenant, self._lender.now + PREPARE_SECONDS, moves)
        self._lender.say(tenant, "prepare", id=question, timeout=PREPARE_SECONDS)

    def prepared(self, row: TenantRow, question: str, blockers: Sequence[str], cached: object) -> None:
        """The process has let go of what it need not keep; `cached` is what it still has in reserve, where it says so."""
        asked = self._asked.get(question)
        if asked is None or asked.tenant != row.id:
            return
        if blockers and asked.moves and row.residency is Residency.SUSPENDING:
            row.blockers = tuple(blockers)
            if not self._lender.view.movable(row):  # what the driver cannot move, the library may
                del self._asked[question]
                self._stay(row)
                return
        self._prepared(question, sizes_of(cached, row.home), freed=isinstance(cached, list))

    def _prepared(self, question: str, cached: Mapping[str, int], *, freed: bool) -> None:
        asked = self._asked.pop(question)
        self._trimmed(asked.tenant, cached, freed=freed)
        if asked.moves:
            self._begin_suspend(asked.tenant, None)

    def _trimmed(self, tenant: str, cached: Mapping[str, int], *, freed: bool) -> None:
        """The tenant has given back what it kept in reserve but for `cached`; or, if nothing was `freed`, will not."""
        self._lender.trimming.discard(tenant)
        row = self._ledger.tenants.get(tenant)
        if row is None or row.residency not in (Residency.RESIDENT, Residency.SUSPENDING) or self._lender.view.computes(tenant):
            return
        if freed:
            gone = {uuid: max(0, size - cached.get(uuid, 0)) for uuid, size in row.reserve.items()}
            row.state = {uuid: size - gone.get(uuid, 0) for uuid, size in row.state.items()}
            if row.simulated is not None:
                row.simulated, row.simulated_cache = max(0, row.simulated - sum(gone.values())), 0
        # What it still keeps then, and what those keep who do not answer, they cannot spare.
        row.cache = {}
        self._ledger.touch(row)
        self._lender.look()

    def _begin_suspend(self, tenant: str, pauses: str | None) -> None:
        row = self._ledger.tenants.get(tenant)
        if row is None or row.residency is not Residency.SUSPENDING:
            return
        others = tuple(one.pid for one in self._ledger.tenants.values() if one.id != tenant)
        row.members = tuple(dict.fromkeys((*row.members, *(one for one in row.joined if one != tenant))))
        self._ledger.touch(row)
        self.actions.append(Gather(tenant, pauses, row.targets(), row.home, others))

    def gathered(self, tenant: str, pauses: str | None, targets: Sequence[Target]) -> None:
        """These are the tenant's processes with state on its devices."""
        row = self._ledger.tenants.get(tenant)
        if row is None or row.residency is not Residency.SUSPENDING:
            return
        # Written down before it begins: once they are off the device, nothing shows any more who is to be brought back.
        row.members = tuple(f"{target.pid}-{target.start}" for target in targets[1:])
        row.loose = row.gated and not set(row.joined).issuperset(row.members)
        if not row.moved_by:
            # Known before it begins, too: the broker after a restart goes on in the same way.
            way, _why = self._lender.view.way(row)
            if way is MoveMethod.HOLD:
                self._stay(row)
                return
            row.moved_by = way.value
        self._ledger.touch(row)
        size = sum(row.state.values())
        way = MoveMethod(row.moved_by)
        found = tuple(targets)
        self._lender.under_way.begun(row, OUT, self._lender.now)
        self.actions.append(MoveOut(tenant, pauses, found, row.home, size, way, self._members(row), row.memory))

    def leaves(self, tenant: str) -> None:
        """The tenant's state leaves its devices piece by piece now: what is off them makes room for others."""
        row = self._ledger.tenants.get(tenant)
        if row is not None and row.residency is Residency.SUSPENDING:
            self._lender.leaving.add(tenant)

    def moved_out(self, tenant: str, pauses: str | None, moved: Moved) -> None:
        """The move to host memory has ended so."""
        self._lender.leaving.discard(tenant)
        row = self._ledger.tenants.get(tenant)
        self._lender.under_way.ended(tenant, moved, self._lender.now)
        if row is None:
            return
        if moved.cordon:
            self._ledger.cordon(row.home, f"cordoned: {moved.message}")
        now = self._lender.now
        if moved.ending in (Ending.DONE, Ending.UNVERIFIED):
            row.residency, row.failures, row.cache = Residency.SUSPENDED, 0, {}
            row.unverified = moved.ending is Ending.UNVERIFIED
            if moved.bytes or row.moved_by == MoveMethod.BUS:
                row.state = _shares(row.state, row.home, moved.bytes)
            if row.moved_by == MoveMethod.BUS:
                self._lender.look()  # contexts are still there
            self._pause(row, pauses, now, moved.seconds)
            if row.on_disk:
                row.residency = Residency.SPILLING
                self.spill(row.id)
        elif moved.ending is Ending.LOST:
            self._lender.lose(row, moved.message)
        elif moved.ending is Ending.UNSUSPENDABLE:
            row.libraries = moved.libraries
            row.broken = "" if moved.libraries else moved.message or "the driver refuses to move it"
            if row.role == RUNNER:
                text = f"This task keeps its GPUs although others wait for them: its GPU state cannot be moved ({row.why_not})."
                self._lender.say(row.id, "notice", level="warning", message=text)
            self._stay(row)
        else:
            self._put_off(row, moved)
            self._stay(row)
        self._ledger.touch(row)

    def _pause(self, row: TenantRow, pauses: str | None, now: float, took: float = 0.0) -> None:
        lease = self._ledger.leases.get(pauses or "")
        if lease is None or lease.tenant != row.id or lease.state is not LeaseState.ACTIVE:
            return
        if lease.exclusive:  # while its state moved the task computed nothing
            lease.since = min(now, lease.since + took)
        self._lender.pause(row, lease, now)

    def pause_in_place(self, row: TenantRow, lease: LeaseRow) -> None:
        """Stop the tenant where its state is: at once where nothing computes but what the runner stops, else at its gates."""
        if not row.gated:
            self._lender.pause(row, lease, self._lender.now)
            return
        lease.pausing = True
        self._ledger.touch(lease)
        self.actions.append(Pause(row.id, lease.id, self._members(row)))

    def paused(self, tenant: str, lease_id: str, moved: Moved) -> None:
        """The tenant's processes were stopped at their gates, or not."""
        row, lease = self._ledger.tenants.get(tenant), self._ledger.leases.get(lease_id)
        if row is None or lease is None or not lease.pausing:
            return
        lease.pausing = False
        self._ledger.touch(lease, row)
        if moved.ending is Ending.DONE:
            row.failures = 0
            self._pause(row, lease_id, self._lender.now)
        else:
            self._put_off(row, moved)

    def _stay(self, row: TenantRow) -> None:
        if row.moved_by == MoveMethod.BUS:
            row.members = ()
        row.residency, row.moved_by, row.on_disk = Residency.RESIDENT, "", False
        self._ledger.touch(row)
        self._lender.keep_in_place(row)

    # --- to the disk and from there -----------------------------------------------------------------------------------------

    def spill(self, tenant: str) -> None:
        """Put the tenant's state onto the disk; its row says SPILLING."""
        row = self._ledger.tenants[tenant]
        row.spills += 1
        # A name is never used for two states: an old file that somebody puts back is none of this one.
        row.files = {member: f"{member}.{row.spills}" for member in self._members(row)} if row.moved_by == MoveMethod.BUS else {}
        self._ledger.touch(row)
        self._spill(row)

    def _spill(self, row: TenantRow) -> None:
        self._lender.under_way.begun(row, TO_DISK, self._lender.now)
        size, way = sum(row.state.values()), MoveMethod(row.moved_by or MoveMethod.DRIVER)
        self.actions.append(Spill(row.id, row.targets()[0], size, way, dict(row.files)))

    def spilled(self, tenant: str, moved: Moved) -> None:
        """Putting the state onto the disk has ended so. What did not begin leaves it where it was."""
        row = self._ledger.tenants.get(tenant)
        self._lender.under_way.ended(tenant, moved, self._lender.now)
        if row is None:
            return
        if moved.ending is Ending.DONE:
            row.residency, row.on_disk, row.failures = Residency.SPILLED, True, 0
        elif moved.ending is Ending.LOST:
            self._lender.lose(row, moved.message)
        elif row.on_disk:
            self._spill(row)  # it went straight, and has nowhere else to be
        else:
            row.residency = Residency.SUSPENDED
            if moved.ending is not Ending.UNVERIFIED:
                row.files, row.disk_short = {}, self._lender.disk.left()
            self._put_off(row, moved)
        self._ledger.touch(row)

    def unspilled(self, tenant: str, lease_id: str | None, moved: Moved) -> None:
        """Bringing the state from the disk has ended so. It is there, too, until it is back on its devices."""
        row = self._ledger.tenants.get(tenant)
        self._lender.under_way.ended(tenant, moved, self._lender.now)
        if row is None:
            return
        if moved.ending is Ending.DONE:
            if row.moved_by == MoveMethod.BUS:
                row.on_disk, row.files = False, {}  # as a whole in host memory, and nowhere else
                self._ledger.touch(row)
            self._move_back(row, lease_id)
        else:
            self.moved_back(tenant, lease_id, moved)

    # --- back to the device -------------------------------------------------------------------------------------------------

    def resume(self, tenant: str, lease: str | None) -> None:
        """Bring the tenant's state back; its row says RESUMING."""
        row = self._ledger.tenants.get(tenant)
        if row is None:
            return
        if row.on_disk:
            self._lender.under_way.begun(row, FROM_DISK, self._lender.now)
            size, way = sum(row.state.values()), MoveMethod(row.moved_by or MoveMethod.DRIVER)
            self.actions.append(Unspill(tenant, lease, row.targets()[0], size, way, dict(row.files)))
        else:
            self._move_back(row, lease)

    def exchange(self, tenant: str) -> None:
        """Bring the tenant's state in while those of others leave its devices. Who asked for it has a lease when all is done."""
        row = self._ledger.tenants[tenant]
        row.residency = Residency.RESUMING
        self._ledger.touch(row)
        self._move_back(row, None)
        self._lender.under_way.exchanged(tenant, self._lender.now)

    def _move_back(self, row: TenantRow, lease: str | None) -> None:
        self._lender.under_way.begun(row, BACK, self._lender.now)
        devices = self._lender.devices
        memory = {uuid: devices[uuid].memory for uuid in row.home if uuid in devices}
        way = MoveMethod(row.moved_by or MoveMethod.DRIVER)
        state, members = dict(row.state), self._members(row)
        self.actions.append(MoveBack(row.id, lease, row.targets(), row.home, state, memory, way, members, row.moves))

    def moved_back(self, tenant: str, lease_id: str | None, moved: Moved) -> None:
        """Bringing the state back has ended so."""
        row = self._ledger.tenants.get(tenant)
        self._lender.under_way.ended(tenant, moved, self._lender.now)
        if row is None:
            return
        if moved.cordon:
            self._ledger.cordon(row.home, f"cordoned: {moved.message}")
        now = self._lender.now
        lease = self._ledger.leases.get(lease_id or "")
        if moved.ending is Ending.DONE:
            row.residency, row.failures, row.members = Residency.RESIDENT, 0, ()
            row.moved_by, row.on_disk, row.disk_short, row.left = "", False, -1, ()
            if lease is not None:
                self._begin(row, lease, now)
            else:
                self._lender.keep_in_place(row)
        elif moved.ending in (Ending.LOST, Ending.UNSUSPENDABLE):
            self._lender.lose(row, moved.message)
        else:
            row.residency = Residency.SPILLED if row.on_disk else Residency.SUSPENDED
            if row.left and self._lender.tier is not Tier.SIMULATED:
                # The driver may have refused the map, or ignored it. Once is enough: a state that waits at home is not lost.
                row.move_home(row.left)
                row.settled = True
            if lease_id is None:
                # It has yielded, which is no failure of its own: it comes in when its devices are free, or in the next exchange.
                row.retry_at = now + _RETRY
            else:
                self._put_off(row, moved)
            if lease is not None:
                self._back_in_line(row, lease, now)
        self._ledger.touch(row)

    def _begin(self, row: TenantRow, lease: LeaseRow, now: float) -> None:
        lease.pending, lease.resumed = False, True
        if lease.used == 0.0:
            self._lender.announce(row, lease, now)
            return
        lease.since = now
        self._ledger.touch(lease)
        self._lender.resumed(row, lease)

    def _back_in_line(self, row: TenantRow, lease: LeaseRow, now: float) -> None:
        """The lease's state did not come back this time: its devices are free, and it waits on at its old place."""
        if lease.used > 0.0:
            lease.since = now
            self._ledger.pause(lease, now)
            if lease.aside:
                return
            request = resumption(row, lease, now)
        else:
            request = asked_again(row, lease)
            self._ledger.withdraw(lease)
        request.retry_at = row.retry_at
        self._ledger.add_request(request)

    def _members(self, row: TenantRow) -> tuple[str, ...]:
        """The processes whose libraries move the tenant's state, connected now or soon again."""
        if not row.gated:
            return ()
        own = {row.id} if row.role == KERNEL else set(row.members)
        return tuple(sorted(own.union(row.joined)))

    # --- after a restart ----------------------------------------------------------------------------------------------------

    def started(self) -> None:
        """Remember what an earlier broker had begun, before anything is decided."""
        self._begun_before = frozenset(row.id for row in self._ledger.tenants.values() if row.residency in _MOVING)

    def recover(self) -> list[tuple[str, str | None]]:
        """Repeat the moves that an earlier broker had begun. Returns whose state is to come back, and for which lease."""
        back: list[tuple[str, str | None]] = []
        before, self._begun_before = self._begun_before, frozenset()
        for row in [row for row in self._ledger.tenants.values() if row.id in before]:
            active = [lease for lease in self._ledger.leases_of(row.id) if lease.state is LeaseState.ACTIVE]
            if row.residency is Residency.SUSPENDING:
                self._begin_suspend(row.id, active[0].id if active else None)
            elif row.residency is Residency.SPILLING:
                self._spill(row)
            elif row.residency is Residency.RESUMING:
                pending = [lease.id for lease in active if lease.pending]
                back.append((row.id, pending[0] if pending else None))
        return back

    def _put_off(self, row: TenantRow, moved: Moved) -> None:
        row.failures += 1
        if moved.ending is not Ending.GONE:
            row.retry_at = self._lender.now + min(_LONGEST_RETRY, _RETRY * 2 ** (row.failures - 1))


def _shares(state: dict[str, int], devices: Sequence[str], total: int) -> dict[str, int]:
    """`total` bytes over the devices, in the proportions that were known."""
    known = sum(state.values())
    if not known:
        return dict.fromkeys(devices, total // max(1, len(devices)))
    return {uuid: int(size * total / known) for uuid, size in state.items()}
