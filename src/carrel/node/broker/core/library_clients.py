"""Processes with the residency library: their calls to the driver wait at a gate until the process has a lease.

Such a process is a *member* of a tenant: a kernel and each of its children of a tenant of their own, which the kernel's hook
shares; the processes of a task of their runner. A tenant has one lease: a process that asks while there is one joins it. The
gate of a process whose library has not joined is closed, so a cell that does not compute has nothing that others could wait for.

What members say is known until the broker ends; then its members say all of it to the next broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from carrel.core.domain.errors import CarrelError, Invalid, Unavailable
from carrel.core.domain.lease import ContextPlace, LeaseState, MoveMethod, Queued, Residency
from carrel.node.broker.core.client_requests import ClientRequests
from carrel.node.broker.core.effects import NEVER
from carrel.node.broker.core.identity import Identity
from carrel.node.broker.core.joined import Joined
from carrel.node.broker.core.lender import Lender
from carrel.node.broker.core.messages import Peer, sizes_of, text_of, words_of
from carrel.node.broker.core.moves import Moves
from carrel.node.broker.core.rows import LeaseRow, TenantRow
from carrel.node.leases.protocol import KERNEL, RUNNER, VERSION
from carrel.node.suspension.survival import REASONS

#: Seconds without work after which a process gives its lease back, and in which a cell that has one may begin to compute.
LINGER, UNUSED = 0.2, 1.0
#: Seconds in which a process that computes without a lease has to come to rest.
_PAUSE = 10.0

Message = Mapping[str, Any]


@dataclass(slots=True)
class LibraryProcess:
    """A process with the library."""

    id: str
    tenant: str
    #: The request of the calls that wait at its gate; "": none wait.
    asked: str = ""
    #: The devices that it sees; () before it has begun with CUDA.
    sees: tuple[str, ...] = ()
    #: Bytes by device that it can move, and why others stay.
    movable: dict[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    #: It came back stopped while its state was about to move: where that does not move after all, it needs the order to go on.
    stopped: bool = False


class LibraryClients:
    """Serves the libraries. The core settles after each call."""

    def __init__(self, lender: Lender, client_requests: ClientRequests, moves: Moves) -> None:
        self._lender = lender
        self._moves = moves
        self.joined = Joined(lender.ledger)
        self._ledger = lender.ledger
        self._client_requests = client_requests
        self._members: dict[str, LibraryProcess] = {}
        #: When a lease that nobody uses is looked at again (Unix seconds).
        self.due = NEVER
        self._operations: dict[str, Callable[[LibraryProcess, TenantRow, Message], None]] = {
            "acquire": self._acquire,
            "cancel": self._cancel,
            "release": self._release,
            "quiet": self._note,
            "progress": self._progress,
        }

    # --- members come and go ------------------------------------------------------------------------------------------------

    def hello(self, process: Peer, identity: Identity, message: Message) -> None:
        """A process with the library has connected: for the first time, or again."""
        row = self._tenant(process, identity, message)
        member = self._members[process.name] = LibraryProcess(process.name, row.id)
        self._lender.members.setdefault(row.id, set()).add(member.id)
        row.gated = True
        self.joined.add(row, member.id)
        self._lender.say_member(member.id, "welcome", v=VERSION, linger=LINGER)
        self._note(member, row, message)
        lease = self._find_lease(member, row, message)
        self._find_state(member, row, message, lease)

    def gone(self, member: str, *, closed: bool) -> None:
        """The connection is over, `closed` by the process or lost. It has its lease as before."""
        found = self._members.pop(member, None)
        if found is None:
            return
        self._lender.members[found.tenant].discard(member)
        if not self._lender.members[found.tenant]:
            del self._lender.members[found.tenant]
        if closed:
            self.joined.part(member)

    def ended(self, member: str) -> None:
        """The process has ended."""
        self.gone(member, closed=True)
        self.joined.ended(member)
        for lease in [lease for lease in self._ledger.leases.values() if member in lease.gates]:
            self._leave(self._ledger.tenants[lease.tenant], lease, member)

    def said(self, member: str, message: Message) -> bool:
        """A member's message. False for one that is not for the core."""
        operation, found = self._operations.get(message["op"]), self._members.get(member)
        row = self._ledger.tenants.get(found.tenant) if found is not None else None
        if operation is None or found is None or row is None:
            return False
        operation(found, row, message)
        return True

    def _tenant(self, process: Peer, identity: Identity, message: Message) -> TenantRow:
        if identity.assigned:
            for row in self._ledger.tenants.values():
                if (row.role, row.job, row.attempt) == (RUNNER, identity.job, identity.attempt):
                    return row
            # It has one before its command begins: after a restart it has not come back yet.
            raise Unavailable(f"The runner of job {identity.job} has no lease.", remedy="Ask again.")
        known = self._ledger.tenants.get(process.name)
        if known is not None and known.job == identity.job:
            return known
        about = {"kernel": text_of(message, "kernel"), "label": text_of(message, "label")}
        return self._client_requests.arrive(process, identity.as_role(KERNEL), about)

    def _find_lease(self, member: LibraryProcess, row: TenantRow, message: Message) -> LeaseRow | None:
        """What became of the lease that the process has, or had."""
        name = text_of(message, "lease")
        for lease in self._ledger.leases_of(row.id):
            if member.id in lease.gates and lease.id != name:
                self._leave(row, lease, member.id)  # it was given back while nobody heard it
        if not name:
            return None
        found = self._ledger.leases.get(name)
        if found is None or found.tenant != row.id or found.state is LeaseState.HELD:
            # It is over, or was never written down: the process stops, and asks again.
            self._lender.say_member(member.id, "pause", id=0, timeout=_PAUSE)
            self._lender.say_member(member.id, "go", id=0, lease="")
            return None
        self._join(found, member)
        found.asked_back = False  # it is asked again, if others still want it
        self._ledger.touch(found)
        return found

    def _find_state(self, member: LibraryProcess, row: TenantRow, message: Message, lease: LeaseRow | None) -> None:
        """Where the process' memory is, if an earlier broker has not said so."""
        place = text_of(message, "place")
        if place in ("out", "lost"):
            self.is_away(row)
        elif place == "spilled":
            self.is_spilled(row, member.id)
        elif not member.sees and place == "none" and row.id == member.id and not self._ledger.leases_of(row.id):
            # Another program than before: one that was replaced (execve(2)) has no state any more.
            if row.residency in (Residency.RESIDENT, Residency.SUSPENDED, Residency.SPILLED):
                self._forget(row)
        elif row.residency is Residency.SUSPENDED and row.moved_by == MoveMethod.BUS and row.id == member.id:
            row.residency, row.moved_by, row.context = Residency.RESIDENT, "", ContextPlace.DEVICE.value
            self._ledger.touch(row)
        elif row.residency is Residency.SUSPENDED and row.moved_by == MoveMethod.BUS and place == "in":
            # One of a task's, whose others may be away: it was not known when those left, and follows them.
            row.residency = Residency.SUSPENDING
            self._moves.suspend(row.id, None)
        elif row.residency is Residency.NONE and member.sees and lease is None and row.role == KERNEL:
            devices = tuple(uuid for uuid in member.sees if uuid in self._lender.devices)
            if devices:
                self._lender.settle_in(row, devices)
        member.stopped = message.get("paused") is True and lease is not None
        self._go_on(member, row)

    def _go_on(self, member: LibraryProcess, row: TenantRow) -> None:
        """A process that came back stopped goes on once its lease can be used."""
        for lease in self._ledger.leases_of(row.id) if member.stopped else ():
            if member.id in lease.gates and _is_usable(row, lease):
                member.stopped = False
                self._lender.say_member(member.id, "go", id=0, lease=lease.id, fence=lease.fence)

    def found_away(self, member: str) -> None:
        """A move that nobody waited for any more has ended: its state is off the device."""
        found = self._members.get(member)
        if found is not None:
            self.is_away(self._ledger.tenants[found.tenant])

    def found_spilled(self, member: str) -> None:
        """A process has let go of its host memory although nobody waited for that any more: its state is on the disk."""
        found = self._members.get(member)
        if found is not None:
            self.is_spilled(self._ledger.tenants[found.tenant], member)

    def is_spilled(self, row: TenantRow, member: str) -> None:
        """The process' state is on the disk, also if the ledger said otherwise; without a file of it, nowhere."""
        if row.residency is Residency.LOST:
            return
        if member not in row.files:
            self._lender.lose(row, "it was on the disk, and the broker does not know where: its journal is gone")
        elif row.residency in (Residency.SUSPENDED, Residency.RESUMING) and not row.on_disk:
            row.on_disk = True
            row.residency = Residency.SPILLED if row.residency is Residency.SUSPENDED else row.residency
            self._ledger.touch(row)

    def is_away(self, row: TenantRow) -> None:
        """A state that was taken to be on its device is not: a move has gone on although nobody waited for it any more."""
        if row.residency not in (Residency.NONE, Residency.RESIDENT):
            return
        members = [one for one in self._members.values() if one.tenant == row.id]
        row.home = row.home or tuple(dict.fromkeys(uuid for one in members for uuid in one.sees if uuid in self._lender.devices))
        if not row.home:
            return  # on no device of ours
        state = {uuid: size for uuid, size in row.movable.items() if uuid in row.home}
        row.residency, row.moved_by, row.state = Residency.SUSPENDED, MoveMethod.BUS.value, state
        self._ledger.touch(row)
        for lease in self._ledger.leases_of(row.id):
            if lease.state is LeaseState.ACTIVE and not lease.pending:
                self._lender.pause(row, lease, self._lender.now)
            elif lease.state is LeaseState.HELD:
                self._ledger.drop_lease(lease, self._lender.now, outcome="held")

    def _forget(self, row: TenantRow) -> None:
        row.residency, row.home, row.state, row.fixed, row.moved_by, row.cache = Residency.NONE, (), {}, {}, "", {}
        row.on_disk, row.context = False, ContextPlace.DEVICE.value
        self._ledger.touch(row)

    # --- asking and giving back ---------------------------------------------------------------------------------------------

    def _acquire(self, member: LibraryProcess, _row: TenantRow, message: Message) -> None:
        request = text_of(message, "request")
        if not request:
            raise Invalid("The request has no id.", remedy="Send one that is unique in the process.")
        member.asked = request
        self._serve(member)

    def _cancel(self, member: LibraryProcess, row: TenantRow, message: Message) -> None:
        """Nobody waits at its gate any more."""
        if member.asked != text_of(message, "request"):
            return
        member.asked = ""
        if any(one.asked for one in self._members.values() if one.tenant == row.id):
            return
        for request in self._ledger.requests_of(row.id):
            if request.gate and request.resumes is None:
                self._ledger.drop_request(request)
        for lease in self._ledger.leases_of(row.id):
            if lease.pending and not lease.request and not lease.gates:
                self._lender.end(row, lease, self._lender.now, outcome="aborted", cuda=None)

    def _release(self, member: LibraryProcess, row: TenantRow, message: Message) -> None:
        """Its device is idle, and its gate closed."""
        self._note(member, row, message)
        lease, fence = self._ledger.leases.get(text_of(message, "lease")), message.get("fence")
        if lease is not None and member.id in lease.gates and isinstance(fence, int) and fence <= lease.fence:
            self._leave(row, lease, member.id)

    def _note(self, member: LibraryProcess, row: TenantRow, message: Message) -> None:
        """What it has on each device that it sees."""
        member.sees = tuple(dict.fromkeys(uuid for uuid in words_of(message.get("devices", ())) if uuid))
        member.movable = sizes_of(message.get("movable"), member.sees)
        member.reasons = tuple(word for word in words_of(message.get("reasons", ())) if word in REASONS)
        everybody = [one for one in self._members.values() if one.tenant == row.id]
        movable: dict[str, int] = {}
        for one in everybody:
            for uuid, size in one.movable.items():
                movable[uuid] = movable.get(uuid, 0) + size
        row.movable = movable
        row.reasons = tuple(dict.fromkeys(reason for one in everybody for reason in one.reasons))
        self._ledger.touch(row)

    def moved(self, tenant: str, moves: Mapping[str, str]) -> None:
        """The devices that the tenant's processes see are others now; they tell so with their next message."""
        for member in [one for one in self._members.values() if one.tenant == tenant]:
            member.sees = tuple(moves.get(uuid, uuid) for uuid in member.sees)
            member.movable = {moves.get(uuid, uuid): size for uuid, size in member.movable.items()}

    def _progress(self, _member: LibraryProcess, row: TenantRow, message: Message) -> None:
        """So much of its memory has moved, for those who watch."""
        done, of = message.get("done"), message.get("of")
        if type(done) is int and type(of) is int:
            self._lender.under_way.progress(row.id, done, of, self._lender.now)

    def _join(self, lease: LeaseRow, member: LibraryProcess) -> None:
        if member.id not in lease.gates:
            lease.gates = (*lease.gates, member.id)
            self._ledger.touch(lease)

    def _leave(self, row: TenantRow, lease: LeaseRow, member: str) -> None:
        """The process' gate is closed; with the last one the lease is over, unless a cell that runs may still want it."""
        lease.gates = tuple(one for one in lease.gates if one != member)
        self._ledger.touch(lease)
        if lease.gates or row.role == RUNNER or (lease.request and not lease.asked_back):
            return
        self._end(row, lease)

    def _end(self, row: TenantRow, lease: LeaseRow) -> None:
        cuda = any(one.sees for one in self._members.values() if one.tenant == row.id)
        self._lender.end(row, lease, self._lender.now, outcome=lease.outcome or "ok", cuda=cuda)

    # --- settling -----------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """A process that waits at a gate is let in with the lease that the tenant has, or stands in line for one."""
        for member in self._members.values():
            if (row := self._ledger.tenants.get(member.tenant)) is not None:
                self._go_on(member, row)
        refused, self._lender.refused = self._lender.refused, {}
        for member in [one for one in self._members.values() if one.asked]:
            fields = refused.get(member.tenant)
            if fields is None:
                self._serve(member)
            else:
                request, member.asked = member.asked, ""
                self._lender.say_member(member.id, "refused", request=request, **fields)
        for lease in [one for one in self._ledger.leases.values() if self._is_nobodys(one)]:
            self._end(self._ledger.tenants[lease.tenant], lease)
        for lease in [one for one in self._ledger.leases.values() if self._is_held_for_nothing(one)]:
            self._ledger.drop_lease(lease, self._lender.now, outcome="held")

    def _is_nobodys(self, lease: LeaseRow) -> bool:
        """Its library has asked for it and does not want it any more."""
        row = self._ledger.tenants[lease.tenant]
        members = self._lender.members.get(row.id, set())
        if not members or lease.request or lease.gates or lease.state is not LeaseState.ACTIVE or lease.pending or lease.pausing:
            return False
        return not any(self._members[member].asked for member in members)

    def _is_held_for_nothing(self, lease: LeaseRow) -> bool:
        """What kept the state from being moved is over: nobody's process is ended for it."""
        row = self._ledger.tenants[lease.tenant]
        held = lease.state is LeaseState.HELD and not lease.by_choice and not lease.ending
        return held and row.gated and self._lender.view.movable(row)

    def _serve(self, member: LibraryProcess) -> None:
        row = self._ledger.tenants[member.tenant]
        try:
            self._look_for_one(member, row)
        except CarrelError as error:
            request, member.asked = member.asked, ""
            code = str(error.details.get("code", error.code))
            self._lender.say_member(member.id, "refused", request=request, code=code, message=error.message, remedy=error.remedy)

    def _look_for_one(self, member: LibraryProcess, row: TenantRow) -> None:
        leases = [lease for lease in self._ledger.leases_of(row.id) if lease.state is not LeaseState.HELD]
        for lease in [one for one in leases if _is_usable(row, one)]:
            if not set(member.sees).isdisjoint(lease.devices) or not member.sees:
                self._merge(row, lease, leases)
                request, member.asked = member.asked, ""
                self._join(lease, member)
                fields = {"lease": lease.id, "fence": lease.fence, "devices": list(lease.devices)}
                self._lender.say_member(member.id, "granted", request=request, **fields)
                return
            if not lease.gates and row.role == KERNEL:
                self._end(row, lease)  # of other devices than the process sees
                leases.remove(lease)
        if row.role == RUNNER or leases or self._ledger.requests_of(row.id):
            return
        asked = self._client_requests.wanted_at_gate(row, member.asked, member.sees)
        taken = self._client_requests.take_up(row, asked)
        if taken is None:
            self._ledger.add_request(asked)
            self._lender.retell(asked.id)
            if row.residency is not Residency.RESIDENT:
                self._lender.look()
            return
        if not member.sees or not set(member.sees).isdisjoint(taken.devices):
            self._serve(member)

    def _merge(self, row: TenantRow, lease: LeaseRow, leases: Sequence[LeaseRow]) -> None:
        """A lease of the tenant that was paused is over in a newer one; its processes go on with that."""
        for other in leases:
            if other.state is LeaseState.PAUSED and other is not lease:
                for name in other.gates:
                    if name in self._members:
                        self._join(lease, self._members[name])
                        self._lender.say_member(name, "go", id=0, lease=lease.id, fence=lease.fence)
                self._lender.end(row, other, self._lender.now, outcome=other.outcome or "ok", cuda=None)

    def ask_back(self, queue: Sequence[Queued], now: float) -> bool:
        """Others wait for devices that a cell has and does not use. True when that has ended a lease."""
        wanted: dict[str, set[str]] = {}
        for entry in queue:
            asked = self._ledger.requests[entry.request]
            devices = asked.devices or self._ledger.tenants[asked.tenant].home or tuple(self._lender.devices)
            for uuid in devices:
                wanted.setdefault(uuid, set()).add(asked.tenant)
        ended = False
        for lease in list(self._ledger.leases.values()):
            row = self._ledger.tenants[lease.tenant]
            members = self._lender.members.get(row.id)
            if not members or row.role == RUNNER or lease.state is not LeaseState.ACTIVE or lease.pending or lease.pausing:
                continue
            if not any(wanted.get(uuid, set()) - {row.id} for uuid in lease.devices):
                continue
            if lease.gates:
                if not lease.asked_back:
                    lease.asked_back = True
                    self._ledger.touch(lease)
                    for member in lease.gates:
                        self._lender.say_member(member, "wanted")
            elif now - lease.since >= UNUSED:
                self._end(row, lease)
                ended = True
            else:
                self.due = min(self.due, lease.since + UNUSED)
        return ended


def _is_usable(row: TenantRow, lease: LeaseRow) -> bool:
    """True when processes of the tenant can compute with the lease now: nothing of it is being moved, or stopped."""
    here = row.residency in (Residency.NONE, Residency.RESIDENT)
    return here and lease.state is LeaseState.ACTIVE and not lease.pending and not lease.pausing
