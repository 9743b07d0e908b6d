"""Carrying out moves of GPU state, in worker threads: what was written down before, and what becomes of each ending.

A tenant's row says SUSPENDING or RESUMING from before the move until after it, so a broker that is killed in between knows
what to repeat; the driver's calls can be repeated at any point (`carrel.suspension.ports`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.broker.lender import Lender, Post, resumption
from carrel.broker.loop import Loop, Timer
from carrel.broker.processes import resident, roots, start_time
from carrel.broker.rows import LeaseRow, RequestRow, TenantRow
from carrel.broker.words import sizes_of
from carrel.domain.lease import LeaseState, Residency
from carrel.domain.ports import Clock
from carrel.domain.units import format_size
from carrel.suspension.ports import DriverState, Ending, Moved, Suspender, Target

_log = logging.getLogger(__name__)

#: Seconds that an idle process has to let go of what it need not keep before its state is moved.
PREPARE_SECONDS = 5.0
#: Seconds until a move that did not begin is tried again, doubled each time, and the longest pause.
_RETRY, _LONGEST_RETRY = 2.0, 60.0


#: Bytes of a state whose move says something about how fast states move.
_TELLING = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class _Asked:
    """An idle process that was asked to let go of what it need not keep."""

    tenant: str
    #: Comes when it does not answer.
    timer: Timer
    #: Its state is moved after that.
    moves: bool


class Mover:
    """Moves states for the lender."""

    def __init__(
        self,
        *,
        lender: Lender,
        loop: Loop,
        clock: Clock,
        post: Post,
        suspender: Suspender,
        margin: int,
        rate: float | None = None,
    ) -> None:
        """`margin`: bytes that must be free beside a state that comes back; `rate`: bytes that should move in a second."""
        self._lender = lender
        self._book = lender.book
        self._loop = loop
        self._clock = clock
        self._post = post
        self._suspender = suspender
        self._margin = margin
        self._ids = itertools.count(1)
        #: Idle processes that were asked to let go of what they need not keep, by the id of the question.
        self._asked: dict[str, _Asked] = {}
        #: Bytes of state that move in a second, as the driver's probe and then real moves say; None: nobody knows.
        self.rate = rate

    # --- to host memory -----------------------------------------------------------------------------------------------------

    def suspend(self, tenant: str, pauses: str | None) -> None:
        """Move the tenant's state to host memory; its row says SUSPENDING."""
        if pauses is not None or not self._post.connected(tenant):
            self._begin_suspend(tenant, pauses)
            return
        self._ask(tenant, moves=True)

    def trim(self, tenant: str) -> None:
        """Have the idle tenant give back what it only keeps in reserve."""
        if self._post.connected(tenant):
            self._ask(tenant, moves=False)
        else:
            self._trimmed(tenant, {}, freed=False)

    def _ask(self, tenant: str, *, moves: bool) -> None:
        question = f"prepare-{next(self._ids)}"
        timer = self._loop.later(PREPARE_SECONDS, lambda: self._prepared(question, {}, freed=False))
        self._asked[question] = _Asked(tenant, timer, moves)
        self._post.send(tenant, "prepare", id=question, timeout=PREPARE_SECONDS)

    def prepared(self, row: TenantRow, question: str, blockers: Sequence[str], cached: object) -> None:
        """The process has let go of what it need not keep; `cached` is what it still has in reserve, where it says so."""
        asked = self._asked.get(question)
        if asked is None or asked.tenant != row.id:
            return
        if blockers and asked.moves and row.residency is Residency.SUSPENDING:
            self._asked.pop(question).timer.cancel()
            row.blockers = tuple(blockers)
            self._stay(row)
            self._lender.settle()
            return
        self._prepared(question, sizes_of(cached, row.home), freed=isinstance(cached, list))

    def _prepared(self, question: str, cached: Mapping[str, int], *, freed: bool) -> None:
        asked = self._asked.pop(question)
        asked.timer.cancel()
        self._trimmed(asked.tenant, cached, freed=freed, settle=not asked.moves)
        if asked.moves:
            self._begin_suspend(asked.tenant, None)

    def _trimmed(self, tenant: str, cached: Mapping[str, int], *, freed: bool, settle: bool = True) -> None:
        """The tenant has given back what it kept in reserve but for `cached`; or, if nothing was `freed`, will not."""
        self._lender.trimming.discard(tenant)
        row = self._book.tenants.get(tenant)
        if row is None or row.residency not in (Residency.RESIDENT, Residency.SUSPENDING) or self._lender.computes(tenant):
            return
        if freed:
            gone = {uuid: max(0, size - cached.get(uuid, 0)) for uuid, size in row.reserve.items()}
            row.state = {uuid: size - gone.get(uuid, 0) for uuid, size in row.state.items()}
            if row.simulated is not None:
                row.simulated, row.simulated_cache = max(0, row.simulated - sum(gone.values())), 0
        # What it still keeps then, and what those keep who do not answer, they cannot spare.
        row.cache = {}
        self._book.touch(row)
        self._lender.look()
        if settle:
            self._lender.settle()

    def _begin_suspend(self, tenant: str, pauses: str | None) -> None:
        row = self._book.tenants.get(tenant)
        if row is None or row.residency is not Residency.SUSPENDING:
            return
        known, home = _targets(row), row.home
        self._loop.work(lambda: self._present(known, home), lambda targets: self._move_out(tenant, pauses, targets))

    def _move_out(self, tenant: str, pauses: str | None, targets: Sequence[Target]) -> None:
        row = self._book.tenants.get(tenant)
        if row is None or row.residency is not Residency.SUSPENDING:
            return
        # Written down before it begins: once they are off the device, nothing shows any more who is to be brought back.
        row.members = tuple(f"{target.pid}-{target.start}" for target in targets[1:])
        self._book.touch(row)
        self._lender.settle()
        home, size, memory = row.home, sum(row.state.values()), row.memory

        def move() -> Moved:
            # What is moved becomes memory of the process: with more than its job may have it would be ended, and the state lost.
            used = sum(resident(target.pid) for target in targets) if memory else 0
            if memory and used + size > memory:
                about = f"its state ({format_size(size)}) and what it has in memory ({format_size(used)})"
                return Moved(
                    ending=Ending.UNSUSPENDABLE, message=f"{about} are more than its job asked for ({format_size(memory)})"
                )
            return self._suspender.suspend(targets, devices=home, size=size)

        self._loop.work(move, lambda moved: self._suspended(tenant, pauses, moved))

    def _suspended(self, tenant: str, pauses: str | None, moved: Moved) -> None:
        row = self._book.tenants.get(tenant)
        self._note("suspend", tenant, moved)
        if row is None:
            self._lender.settle()
            return
        if moved.cordon:
            self._book.cordon(row.home, f"cordoned: {moved.message}")
        now = self._clock()
        if moved.ending in (Ending.DONE, Ending.UNVERIFIED):
            row.residency, row.failures, row.cache = Residency.SUSPENDED, 0, {}
            row.unverified = moved.ending is Ending.UNVERIFIED
            if moved.bytes:
                row.state = _shares(row.state, row.home, moved.bytes)
            self._pause(row, pauses, now)
        elif moved.ending is Ending.LOST:
            self._lender.lose(row, moved.message)
        elif moved.ending is Ending.UNSUSPENDABLE:
            row.libraries = moved.libraries
            row.broken = "" if moved.libraries else moved.message or "the driver refuses to move it"
            self._stay(row)
        else:
            self._put_off(row, moved)
            self._stay(row)
        self._book.touch(row)
        self._lender.settle()

    def _pause(self, row: TenantRow, pauses: str | None, now: float) -> None:
        lease = self._book.leases.get(pauses or "")
        if lease is None or lease.tenant != row.id or lease.state is not LeaseState.ACTIVE:
            return
        self._lender.pause(row, lease, now)

    def _stay(self, row: TenantRow) -> None:
        row.residency = Residency.RESIDENT
        self._book.touch(row)
        self._lender.keep_in_place(row)

    # --- back to the device -------------------------------------------------------------------------------------------------

    def resume(self, tenant: str, lease: str | None) -> None:
        """Bring the tenant's state back; its row says RESUMING."""
        row = self._book.tenants.get(tenant)
        if row is None:
            return
        targets, home, state = _targets(row), row.home, dict(row.state)
        devices = self._lender.devices
        memory = {uuid: devices[uuid].memory for uuid in home if uuid in devices}

        def move() -> Moved:
            full = self._too_full(targets, state, memory)
            if full:
                return Moved(ending=Ending.RETRY, message=full)
            moved = self._suspender.resume(targets, devices=home, size=sum(state.values()))
            if moved.ending is Ending.UNVERIFIED:
                # Not unlocked, so it has computed nothing where it should not be: back to host memory, and another try.
                again = self._suspender.suspend(targets, devices=home, size=sum(state.values()))
                ending = Ending.RETRY if again.ending is Ending.DONE else Ending.LOST
                return replace(moved, ending=ending, message=f"{moved.message} {again.message}".strip())
            return moved

        self._loop.work(move, lambda moved: self._resumed(tenant, lease, moved))

    def _resumed(self, tenant: str, lease_id: str | None, moved: Moved) -> None:
        row = self._book.tenants.get(tenant)
        self._note("resume", tenant, moved)
        if row is None:
            self._lender.settle()
            return
        if moved.cordon:
            self._book.cordon(row.home, f"cordoned: {moved.message}")
        now = self._clock()
        lease = self._book.leases.get(lease_id or "")
        if moved.ending is Ending.DONE:
            row.residency, row.failures, row.members = Residency.RESIDENT, 0, ()
            if lease is not None:
                self._begin(row, lease, now)
            else:
                self._lender.keep_in_place(row)
        elif moved.ending in (Ending.LOST, Ending.UNSUSPENDABLE):
            self._lender.lose(row, moved.message)
        else:
            row.residency = Residency.SUSPENDED
            self._put_off(row, moved)
            if lease is not None:
                self._back_in_line(row, lease, now)
        self._book.touch(row)
        self._lender.settle()

    def _begin(self, row: TenantRow, lease: LeaseRow, now: float) -> None:
        lease.pending, lease.resumed = False, True
        if lease.used == 0.0:
            self._lender.announce(row, lease, now)
            return
        lease.since = now
        self._book.touch(lease)
        self._lender.say(row.id, "resumed", lease=lease.id, devices=list(lease.devices), fence=lease.fence)

    def _back_in_line(self, row: TenantRow, lease: LeaseRow, now: float) -> None:
        """The lease's state did not come back this time: its devices are free, and it waits on at its old place."""
        if lease.used > 0.0:
            lease.since = now
            self._book.pause(lease, now)
            request = resumption(row, lease, now)
        else:
            request = RequestRow(
                id=f"{row.id}/{lease.request}",
                request=lease.request,
                tenant=row.id,
                gpus=len(lease.devices),
                cell=lease.cell,
                asked_at=lease.asked_at,
                exclusive=lease.exclusive,
                ends_by=lease.ends_by,
                lends=lease.lends,
                devices=lease.devices if lease.exclusive else (),
            )
            self._book.withdraw(lease)
        request.retry_at = row.retry_at
        self._book.add_request(request)

    # --- after a restart ----------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Repeat the moves that an earlier broker had begun."""
        for row in list(self._book.tenants.values()):
            active = [lease for lease in self._book.leases_of(row.id) if lease.state is LeaseState.ACTIVE]
            if row.residency is Residency.SUSPENDING:
                self._begin_suspend(row.id, active[0].id if active else None)
            elif row.residency is Residency.RESUMING:
                pending = [lease.id for lease in active if lease.pending]
                self.resume(row.id, pending[0] if pending else None)

    # --- small things -------------------------------------------------------------------------------------------------------

    def _too_full(self, targets: Sequence[Target], state: Mapping[str, int], memory: Mapping[str, int]) -> str:
        """Why the state must not be brought back now, or "": a restore that finds no room is the end of it.

        The policy has made room by the last look; this is one more, right before.
        """
        if {DriverState.LOCKED, DriverState.RUNNING} & {self._suspender.state(target) for target in targets}:
            return ""  # a broker that was killed had begun: it is back already, and would be taken for somebody else
        used = self._suspender.use().used
        for uuid, size in state.items():
            needed = min(size + self._margin, max(size, int(memory.get(uuid, 0) * 0.95)))
            free = max(0, memory.get(uuid, 0) - used.get(uuid, 0))
            if uuid in used and free < needed:
                return f"{format_size(free)} of {uuid} are free, {format_size(needed)} are needed"
        return ""

    def _present(self, known: Sequence[Target], devices: Sequence[str]) -> list[Target]:
        """The tenant's processes with GPU state: those that are known, and those of its descendants that are on its devices."""
        processes = self._suspender.use().processes
        found = {target.pid: target for target in known}
        for pid in roots(sorted({pid for uuid in devices for pid in processes.get(uuid, ())}), [known[0].pid]):
            start = start_time(pid)
            if start is not None and pid not in found:
                found[pid] = Target(pid=pid, start=start)
        return list(found.values())

    def _put_off(self, row: TenantRow, moved: Moved) -> None:
        row.failures += 1
        if moved.ending is not Ending.GONE:
            row.retry_at = self._clock() + min(_LONGEST_RETRY, _RETRY * 2 ** (row.failures - 1))

    def _note(self, what: str, tenant: str, moved: Moved) -> None:
        if moved.ending is Ending.DONE and moved.bytes >= _TELLING and moved.seconds > 0:
            rate = moved.bytes / moved.seconds
            self.rate = rate if self.rate is None else (self.rate + rate) / 2
        _log.info("%s %s: %s, %d bytes in %.3f s %s", what, tenant, moved.ending, moved.bytes, moved.seconds, moved.message)


def _targets(row: TenantRow) -> list[Target]:
    """The tenant's process first, then its children that were moved along."""
    members = [member.split("-") for member in row.members]
    return [Target(pid=row.pid, start=row.start), *(Target(pid=int(pid), start=int(start)) for pid, start in members)]


def _shares(state: dict[str, int], devices: Sequence[str], total: int) -> dict[str, int]:
    """`total` bytes over the devices, in the proportions that were known."""
    known = sum(state.values())
    if not known:
        return dict.fromkeys(devices, total // max(1, len(devices)))
    return {uuid: int(size * total / known) for uuid, size in state.items()}
