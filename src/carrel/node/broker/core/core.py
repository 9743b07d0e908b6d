"""The core's face: one method for each event. Each answers with what to write down, to tell, to do, and when to ask again.

`now` (Unix seconds) is always an argument. An error of `carrel.core.domain.errors` means that nothing has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from carrel.core.domain.errors import Conflict
from carrel.core.domain.lease import Lending, Residency, Tier
from carrel.node.broker.config import BrokerConfig
from carrel.node.broker.core.client_requests import ClientRequests
from carrel.node.broker.core.contexts import Contexts
from carrel.node.broker.core.device_scans import DeviceScans
from carrel.node.broker.core.effects import (
    NEVER,
    Action,
    Checkpoint,
    Effects,
    Gather,
    Line,
    MoveBack,
    MoveOut,
    Pause,
    Restore,
    ScanDevices,
    Spill,
    Unspill,
)
from carrel.node.broker.core.identity import Identity
from carrel.node.broker.core.idle_leases import IdleLeases
from carrel.node.broker.core.ledger import Ledger
from carrel.node.broker.core.lender import Lender
from carrel.node.broker.core.library_clients import LibraryClients
from carrel.node.broker.core.messages import Peer, device_fields, text_of, words_of
from carrel.node.broker.core.moves import Moves
from carrel.node.broker.core.preempted_tasks import PreemptedTasks
from carrel.node.broker.core.rows import TenantRow
from carrel.node.leases.protocol import VERSION
from carrel.node.suspension.ports import Ending
from carrel.node.suspension.survival import staying_modules

Message = Mapping[str, Any]


class Core:
    """Everything that a broker remembers and decides."""

    def __init__(
        self,
        config: BrokerConfig,
        tier: Tier,
        *,
        make_id: str,
        lines: Iterable[Line] = (),
        rate: float | None = None,
        back_rate: float | None = None,
        disk: bool = False,
        homes_move: bool = False,
    ) -> None:
        """`lines`: what earlier brokers wrote down; `rate`, `back_rate`: bytes of state that should move in a second.

        `disk`: states of real devices can go to the disk; `homes_move`: and come back on other devices.
        """
        self.ledger = Ledger(make_id=make_id)
        self.ledger.replay(lines)
        self.lender = Lender(self.ledger, config, tier, rate=rate, back_rate=back_rate, disk=disk, homes_move=homes_move)
        self.device_scans = DeviceScans(self.lender)
        self._moves = Moves(self.lender)
        self._contexts = Contexts(self.lender)
        self._idle_leases = IdleLeases(self.lender, hold_time=config.hold_time, grace=config.grace)
        self._client_requests = ClientRequests(lender=self.lender, config=config)
        self._library_clients = LibraryClients(self.lender, self._client_requests, self._moves)
        self._preempted_tasks = PreemptedTasks(self.lender, self._moves)
        self._config = config
        #: When those who waited at a restart, and libraries that were connected, and have not come back, are not waited for.
        self._drop_at = NEVER
        self._operations: dict[str, Callable[[TenantRow, Message], None]] = {
            "acquire": self._client_requests.acquire,
            "cancel": lambda row, message: self._client_requests.cancel(row, text_of(message, "request")),
            "release": self._client_requests.release,
            "set_aside": self._preempted_tasks.set_aside,
            "go_on": self._preempted_tasks.go_on,
            "touched": lambda row, _message: self._client_requests.touched(row),
            "simulate": lambda row, message: self._client_requests.simulate(row, message.get("bytes"), message.get("cached")),
            "home": lambda row, message: self._client_requests.set_gpus(row, message.get("gpus")),
            "hold": lambda row, message: self._client_requests.hold(row, message.get("seconds")),
            "prepared": lambda row, message: self._moves.prepared(
                row, text_of(message, "id"), words_of(message.get("blockers")), message.get("cached")
            ),
        }

    # --- life ---------------------------------------------------------------------------------------------------------------

    def everything(self, now: float) -> Line:
        """What is true now, for a journal that is begun anew."""
        return self.ledger.everything(now)

    def started(self, now: float, ended: Iterable[str]) -> Effects:
        """The broker begins; these processes, tenants or with the library, have ended while there was none."""
        self._drop_at = now + self._config.reconnect_time
        self.lender.now = now
        for process in ended:
            # Nobody knows when; nobody is charged for the time in which no broker ran, which may be a weekend.
            self._client_requests.gone(process, at=self.ledger.resumed_from)
            self._library_clients.ended(process)
        for lease in self.ledger.leases.values():
            if lease.pausing:  # nobody waits for the answer any more; the processes say it again
                lease.pausing = False
                self.ledger.touch(lease)
        self._moves.started()
        self._contexts.started()
        self.lender.look()
        self._idle_leases.finish(now)
        return self._settle(now)

    def recover(self, now: float) -> Effects:
        """Repeat the moves that an earlier broker had begun."""
        self.lender.now = now
        self._contexts.recover()
        for tenant, lease in self._moves.recover():
            self._resume(tenant, lease)
        return self._settle(now)

    def time_is_up(self, now: float) -> Effects:
        """The moment has come at which the core wanted to be asked again."""
        return self._settle(now)

    def host_memory(self, free: int | None) -> None:
        """So many bytes of host memory are free for states beside those that are there; None: nobody need care."""
        self.lender.host.free = free

    def disk_room(self, free: int | None) -> None:
        """The disk has room for so many bytes of states beside those that are there; None: nobody need care."""
        self.lender.disk.free = free

    # --- tenants ------------------------------------------------------------------------------------------------------------

    def greeting(self) -> dict[str, Any]:
        """What a welcome says to everybody."""
        return {
            "v": VERSION,
            "broker": self.ledger.broker_id,
            "tier": self.lender.tier.value,
            "devices": [device_fields(device) for device in self.lender.devices.values()],
            "hold_time": self._config.hold_time,
            "stay": staying_modules(),
        }

    def hello(self, process: Peer, identity: Identity, message: Message, now: float) -> Effects:
        """A process has connected and was let in; it is welcomed before it hears anything else."""
        self.lender.now = now
        row = self._client_requests.arrive(process, identity, message)
        self.lender.here.add(row.id)
        # Messages about its requests come after the welcome, which knows nothing of them.
        self.lender.say(row.id, "welcome", **self.greeting(), **self._client_requests.welcome(row))
        return self._settle(now)

    def disconnected(self, tenant: str, now: float, *, closed: bool) -> Effects:
        """Its connection is over: closed by the process, which is done then, or lost."""
        self.lender.now = now
        self.lender.here.discard(tenant)
        if closed:
            self._client_requests.leave(tenant)
        return self._settle(now)

    def ended(self, tenant: str, now: float) -> Effects:
        """The process has ended."""
        self.lender.now = now
        self.lender.here.discard(tenant)
        self._library_clients.ended(tenant)
        self._client_requests.gone(tenant)
        return self._settle(now)

    def hello_at_gate(self, process: Peer, identity: Identity, message: Message, now: float) -> Effects:
        """The library in a process has connected, and was let in."""
        self.lender.now = now
        self._library_clients.hello(process, identity, message)
        return self._settle(now)

    def left_gate(self, member: str, now: float, *, closed: bool) -> Effects:
        """The connection of a process' library is over, `closed` by it or lost. It has its lease, and waits for it, as before."""
        self.lender.now = now
        self._library_clients.gone(member, closed=closed)
        return self._settle(now)

    def said_at_gate(self, member: str, message: Message, now: float) -> Effects | None:
        """A message of a process' library; None for one that is no question of leases."""
        self.lender.now = now
        return self._settle(now) if self._library_clients.said(member, message) else None

    def found_away(self, member: str, now: float) -> Effects:
        """A move that was given up has gone on: the process' state is off its devices."""
        self.lender.now = now
        self._library_clients.found_away(member)
        return self._settle(now)

    def found_spilled(self, member: str, now: float) -> Effects:
        """A spill that was given up has gone on: the process has let go of its host memory."""
        self.lender.now = now
        self._library_clients.found_spilled(member)
        return self._settle(now)

    def said(self, tenant: str, message: Message, now: float) -> Effects | None:
        """A tenant's message; None for one that only newer brokers know."""
        operation = self._operations.get(message["op"])
        if operation is None:
            return None
        row = self.ledger.tenants.get(tenant)
        if row is None:
            raise Conflict(f'An observer cannot say "{message["op"]}".', remedy="Connect as a kernel or a runner.")
        self.lender.now = now
        operation(row, message)
        return self._settle(now)

    def took(self, until: int, now: float) -> Effects:
        """The lab has written down the leases that are over, up to this number."""
        self.ledger.take_past(until)
        return self._settle(now)

    def drained(self, devices: Mapping[str, str], now: float) -> Effects:
        """The lab has drained these devices, and no others: they are lent no more. `devices`: why, by their UUIDs."""
        self.ledger.drain(devices)
        return self._settle(now)

    # --- what came of actions -----------------------------------------------------------------------------------------------

    def leaves(self, tenant: str, now: float) -> Effects:
        """Nothing of the tenant computes, and its state begins to leave piece by piece (`MoveOut`, on the bus way)."""
        self.lender.now = now
        self._moves.leaves(tenant)
        return self._settle(now)

    def done(self, action: Action, result: Any, now: float) -> Effects:
        """An action has ended. `effects` has what the result of each is."""
        self.lender.now = now
        match action:
            case Gather():
                self._moves.gathered(action.tenant, action.pauses, result)
            case MoveOut():
                self._moves.moved_out(action.tenant, action.pauses, result)
            case MoveBack():
                if result.ending is Ending.DONE:
                    self._library_clients.moved(action.tenant, action.moves)
                self._moves.moved_back(action.tenant, action.lease, result)
            case Pause():
                self._moves.paused(action.tenant, action.lease, result)
            case Spill():
                self._moves.spilled(action.tenant, result)
            case Unspill():
                self._moves.unspilled(action.tenant, action.lease, result)
            case Checkpoint():
                self._contexts.checkpointed(action.tenant, result)
            case Restore():
                if self._contexts.restored(action.tenant, result):
                    self._library_clients.moved(action.tenant, action.moves)
                    self._moves.resume(action.tenant, action.lease)
                else:
                    self._moves.moved_back(action.tenant, action.lease, result)
            case ScanDevices():
                self.device_scans.looked(action.number, *result)
        return self._settle(now)

    def progress(self, tenant: str, done: int, of: int, now: float) -> None:
        """So many bytes of a move have moved (where the way of moving says it): for those who watch."""
        self.lender.under_way.progress(tenant, done, of, now)

    # --- settling -----------------------------------------------------------------------------------------------------------

    def _settle(self, now: float) -> Effects:
        """Decide, and answer with all that has come of the event."""
        lender = self.lender
        lender.now = now
        if self._drop_at <= now:
            self._drop_at = NEVER
            self._client_requests.drop_waiting()
            self._library_clients.joined.drop_absent(self.lender.members)
        if self._moves.due() <= now:
            self._moves.time_is_up(now)
        self._library_clients.due = NEVER
        self._library_clients.serve()
        self._preempted_tasks.review(now)
        self._decide(now)
        known = len(self.ledger.requests)
        self._library_clients.serve()
        if len(self.ledger.requests) > known:  # what it waited with is over; nobody has looked at its own request yet
            lender.again_at = now
        kills = self._idle_leases.kills(now) if self._idle_leases.due() <= now else ()
        line = self.ledger.changes(now)
        tells, lender.tells = tuple(lender.tells), []
        found, self._moves.actions, self._contexts.actions = [*self._moves.actions, *self._contexts.actions], [], []
        actions: list[Action] = [*found, *kills]
        look = self.device_scans.wanted(now)
        if look is not None:
            actions.append(look)
        parts = (
            self._moves.due(),
            self._idle_leases.due(),
            self.device_scans.due,
            self._library_clients.due,
            self._preempted_tasks.due,
        )
        wake = min(lender.again_at, self._drop_at, *parts)
        return Effects(line, tells, tuple(actions), wake)

    def _decide(self, now: float) -> None:
        lending = self.lender.decide()
        # Who is paused where its state is, or does not use what it has, gives its devices up at once: what that makes possible is
        # decided again.
        while lending is not None and (
            any(suspend.in_place for suspend in lending.suspends) or self._library_clients.ask_back(lending.queue, now)
        ):
            self._begin(lending)
            lending = self.lender.decide()
        if lending is None:
            return
        self._begin(lending)
        if lending.queue or any(lease.wanted_since for lease in self.ledger.leases.values()):
            self._idle_leases.review(lending.queue, now)
        for expire in lending.expires:
            self._idle_leases.expire(self.ledger.leases[expire.lease], now)
        self.lender.tell(lending, now)

    def _resume(self, tenant: str, lease: str | None) -> None:
        """Bring a tenant's state back, after its context where that is away."""
        if not self._contexts.restore(tenant, lease):
            self._moves.resume(tenant, lease)

    def _begin(self, lending: Lending) -> None:
        """Begin the moves and pauses that were decided."""
        lender = self.lender
        for tenant, lease in lender.resuming:
            self._resume(tenant, lease)
        lender.resuming.clear()
        for suspend in lending.suspends:
            row = self.ledger.tenants[suspend.tenant]
            if suspend.in_place:
                self._moves.pause_in_place(row, self.ledger.leases[suspend.pauses or ""])
                continue
            row.residency, row.on_disk = Residency.SUSPENDING, suspend.straight
            self.ledger.touch(row)
            self._moves.suspend(row.id, suspend.pauses)
        for checkpoint in lending.checkpoints:
            self._contexts.checkpoint(checkpoint.tenant)
        for exchange in lending.exchanges:
            self._moves.exchange(exchange.tenant)
        for spill in lending.spills:
            row = self.ledger.tenants[spill.tenant]
            row.residency = Residency.SPILLING
            self.ledger.touch(row)
            self._moves.spill(row.id)
        for trim in lending.trims:
            lender.trimming.add(trim.tenant)
            self._moves.trim(trim.tenant)
