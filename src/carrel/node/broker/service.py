"""The shell around the core: what happens becomes an event, and what the core answers is written down, told and done."""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from carrel.core.domain.errors import CarrelError, Conflict, Unavailable
from carrel.core.domain.lease import MoveMethod
from carrel.core.domain.ports import Clock
from carrel.core.transport.channel import MOST_FILES, Channel, Dropped
from carrel.core.transport.descriptors import most_descriptors
from carrel.core.transport.framing import Closed, Ended, Lines, TooLong
from carrel.core.transport.reactor import Reactor, Timer
from carrel.node.broker.bus import Bus
from carrel.node.broker.client_authentication import ClientAuthentication, listening_at
from carrel.node.broker.core.core import Core
from carrel.node.broker.core.effects import (
    NEVER,
    Action,
    Checkpoint,
    Effects,
    Gather,
    Kill,
    MoveBack,
    MoveOut,
    Pause,
    Restore,
    ScanDevices,
    Spill,
    Unspill,
)
from carrel.node.broker.core.identity import Identity
from carrel.node.broker.core.rows import plain
from carrel.node.broker.disk import StateDisk
from carrel.node.broker.ended_lease_delivery import EndedLeaseDelivery
from carrel.node.broker.journal import BrokerJournal
from carrel.node.broker.mover import Mover
from carrel.node.broker.pool import HostPool
from carrel.node.broker.processes import ProcessGone, is_alive, name_of, peer, roots
from carrel.node.broker.spilling import Spilling, StateFiles
from carrel.node.broker.status import Status
from carrel.node.broker.status_feed import Client, StatusFeed
from carrel.node.broker.watched_processes import WatchedProcesses, descent
from carrel.node.leases.protocol import LONGEST, OBSERVER, RESIDENCY, Message, decode, encode
from carrel.node.suspension.ports import Suspender, Use

_log = logging.getLogger(__name__)

#: Bytes of journal after which it is begun anew.
_LONG = 8 * 1024**2
#: Seconds in which a client says hello, and how many may not have done so. Connections that one job has at most.
_FIRST_WORD, _MOST_SILENT, _MOST_OF_A_JOB = 10.0, 64, 1024


class Service:
    """Listens, brings events to the core, and carries out its effects. All methods are called in the loop's thread."""

    def __init__(
        self,
        core: Core,
        *,
        loop: Reactor,
        clock: Clock,
        gate: ClientAuthentication,
        journal: BrokerJournal,
        mover: Mover,
        suspender: Suspender,
        pool: HostPool,
        host_free: Callable[[], int | None],
        disk: StateDisk | None = None,
        disk_free: Callable[[], int | None] = lambda: None,
        disk_problem: str = "",
    ) -> None:
        """`host_free`: bytes of host memory that are free for states now, or None where nobody need care.

        `disk`: where states of real devices go that host memory has no room for, and what is free there for more; `disk_problem`:
        why there is none although there should be.
        """
        self._core = core
        self._loop = loop
        self._clock = clock
        self._gate = gate
        self._journal = journal
        self._mover = mover
        self._suspender = suspender
        self._bus = Bus(
            loop,
            pool,
            send=self._send_member,
            found_away=lambda member: self.carry_out(core.found_away(member, self._now())),
            found_spilled=lambda member: self.carry_out(core.found_spilled(member, self._now())),
            lives=is_alive,
        )
        self._spilling = Spilling(loop, self._bus, pool, disk, self._progress)
        self._files = StateFiles(loop, disk, [("tenant", plain(row)) for row in core.ledger.tenants.values()])
        self._host_free, self._disk_free = host_free, disk_free
        self._status = Status(core, clock, pool, disk_problem=disk_problem)
        self._handing = EndedLeaseDelivery(loop, core.ledger.past, core.lender.devices, self._taken)
        self._clients: dict[Channel[bytes], Client] = {}
        #: Those of them that have not said who they are, the oldest first; each has until its timer rings.
        self._silent: dict[Channel[bytes], Timer] = {}
        # Each takes two descriptors, of it and of its process; as many are left for all else.
        self._most = most_descriptors() // 4
        self._feed = StatusFeed(loop, self._status, self._clients, see_host=self._see_host)
        self._tenants: dict[str, Channel[bytes]] = {}
        #: Of the libraries in processes, by the process.
        self._members: dict[str, Channel[bytes]] = {}
        #: Those of tenants, connected or not.
        self._processes = WatchedProcesses(loop, on_end=self._died)
        self._listener: socket.socket | None = None
        self._closing = False
        self._waking: Timer | None = None
        self._wake_at = NEVER
        self._effects: deque[Effects] = deque()
        self._carrying = False

    # --- effects ------------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        """The moment of an event; the core knows how much host memory is free by then."""
        self._see_host()
        return self._clock()

    def _see_host(self) -> None:
        free = self._host_free()
        self._core.host_memory(None if free is None else free + self._bus.spare())
        self._core.disk_room(self._disk_free())

    def carry_out(self, effects: Effects) -> None:
        """Write down, then tell, then do. Raises `OSError` when the journal takes nothing: then nothing was sent or done.

        What comes of it meanwhile (a client that does not read is dropped) is carried out after it.
        """
        self._effects.append(effects)
        if self._carrying:
            return
        self._carrying = True
        changed = False
        while self._effects:
            one = self._effects.popleft()
            changed = changed or one.changed
            self._carry_one(one)
        self._carrying = False
        if changed:
            self._feed.changed()

    def _carry_one(self, effects: Effects) -> None:
        if effects.line is not None:
            at, rows, drops = effects.line
            if rows or drops:
                self._journal.append(at, rows, drops)
                self._files.wrote(rows, drops)
                self._handing.look()
                if self._journal.size > _LONG:
                    self._journal.start(self._core.everything(at).rows, at)
        for tenant, op, fields, member in effects.tells:
            connection = self._members.get(member) if member else self._tenants.get(tenant)
            if connection is not None:
                connection.send(encode(op, **fields))
        for action in effects.actions:
            self._act(action)
        if effects.wake < self._wake_at:
            # One that is armed for an earlier moment stays: the core may be asked too often, and never too late.
            if self._waking is not None:
                self._waking.cancel()
            self._wake_at = effects.wake
            self._waking = self._loop.later(effects.wake - self._clock(), self._wake)

    def _taken(self, until: int) -> None:
        self.carry_out(self._core.took(until, self._now()))

    def _wake(self) -> None:
        # The moment has come, also for a clock that was put back meanwhile.
        now, self._wake_at = max(self._now(), self._wake_at), NEVER
        self.carry_out(self._core.time_is_up(now))

    def _act(self, action: Action) -> None:
        def done(result: object) -> None:
            self.carry_out(self._core.done(action, result, self._now()))

        match action:
            case Gather():
                self._mover.gather(action, done)
            case MoveOut(tenant) if action.way is MoveMethod.BUS:
                self._bus.out(action, done, lambda: self.carry_out(self._core.leaves(tenant, self._now())))
            case MoveOut():
                self._mover.out(action, done)
            case MoveBack():
                (self._bus if action.way is MoveMethod.BUS else self._mover).back(action, done)
            case Checkpoint():
                self._mover.checkpoint(action, done)
            case Restore():
                self._mover.back(action, done)
            case Pause():
                self._bus.pause(action, done)
            case Spill():
                (self._spilling if action.way is MoveMethod.BUS else self._mover).spill(action, done)
            case Unspill():
                (self._spilling if action.way is MoveMethod.BUS else self._mover).unspill(action, done)
            case ScanDevices():
                self._loop.work(lambda: self._see(action), done)
            case Kill(tenant, number):
                self._processes.kill(tenant, number)

    def _see(self, scan: ScanDevices) -> tuple[Use, dict[int, int], dict[int, str]]:
        use = self._suspender.use()
        pids = {pid for processes in use.processes.values() for pid in processes}
        parents = roots(pids, scan.pids)
        return use, parents, {pid: name_of(pid) for pid in pids - parents.keys()}

    # --- life ---------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Watch the processes that the journal knows; those that ended meanwhile are gone."""
        known = {name: row.uid for row in self._core.ledger.tenants.values() for name in (row.id, *row.joined)}
        self.carry_out(self._core.started(self._now(), self._processes.watch_known(known)))

    def recover(self) -> None:
        """Repeat the moves that an earlier broker had begun."""
        self.carry_out(self._core.recover(self._now()))

    def listen(self, path: Path, *, everybody: bool = False) -> None:
        """Take connections on a unix socket of this path from now on: of this user's processes, or of everybody's.

        Nobody is let in without the token of a job that runs, in either case.
        """
        self._listener = listening_at(path, everybody=everybody)
        self._loop.watch(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening and close all connections; nobody loses a lease by it."""
        if self._listener is not None:
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
        self._closing = True
        for connection in list(self._clients):
            connection.end(Dropped())

    # --- connections --------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            stream, _address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is left: who is silent may have sent some
            _log.warning("a connection cannot be taken: %s", error)
            if self._silent:
                next(iter(self._silent)).end(Closed("others need its place"))
            return
        try:
            process = peer(stream)
        except (ProcessGone, OSError) as error:
            _log.warning("a connection is refused: %s", error)
            stream.close()
            return
        connection = Channel(Lines(LONGEST), stream, most_files=MOST_FILES)
        connection.attach(self._loop, on_message=self._line, on_end=self._ended)
        self._clients[connection] = Client(process)
        self._silent[connection] = self._loop.later(_FIRST_WORD, lambda: connection.end(Closed("it said nothing")))
        if len(self._silent) > _MOST_SILENT or len(self._clients) > self._most:
            # Who means it says hello at once: so the one goes that has said nothing for longest.
            next(iter(self._silent)).end(Closed("others need its place"))

    def _ended(self, connection: Channel[bytes], why: Ended) -> None:
        client = self._clients.pop(connection)
        self._has_spoken(connection)
        if isinstance(why, TooLong):
            self._refuse_line(connection, client, why)
        closed = not isinstance(why, Dropped)  # only the client's own end says that it is done
        client.process.close()
        self._handing.end(connection)
        if client.member:
            if self._members.get(client.member) is connection:
                del self._members[client.member]
                self.carry_out(self._core.left_gate(client.member, self._now(), closed=closed))
        elif client.tenant and self._tenants.get(client.tenant) is connection:
            del self._tenants[client.tenant]
            if not closed and not self._closing:
                _log.warning("tenant %s does not read and was dropped; it keeps what it has", client.tenant)
            self.carry_out(self._core.disconnected(client.tenant, self._now(), closed=closed))

    def _line(self, connection: Channel[bytes], line: bytes) -> None:
        client = self._clients[connection]
        try:
            message = decode(line)
        except ValueError as error:
            self._refuse_line(connection, client, error)
            connection.end(Closed("it sent what is no message"))
            return
        try:
            if client.identity is None:
                self._hello(connection, client, message)
            else:
                self._operate(connection, client, message)
        except CarrelError as error:
            self._refuse(connection, client, message, error)
        if connection.open:
            connection.refuse_files()  # a library sends those that it has with its hello

    def _refuse_line(self, connection: Channel[bytes], client: Client, error: Exception) -> None:
        _log.warning("process %d sent what is no message: %s", client.process.pid, error)
        connection.send(encode("refused", code="invalid", message=f"That is no message: {error}.", remedy=""))

    def _refuse(self, connection: Channel[bytes], client: Client, message: Message, error: CarrelError) -> None:
        about = {"request": message["request"]} if isinstance(message.get("request"), str) else {}
        code = str(error.details.get("code", error.code))
        connection.send(encode("refused", **about, code=code, message=error.message, remedy=error.remedy))
        if client.identity is None:
            _log.warning("process %d is not let in: %s", client.process.pid, error)
            connection.end(Closed("it was not let in"))

    def _hello(self, connection: Channel[bytes], client: Client, message: Message) -> None:
        if message["op"] != "hello":
            raise Conflict(f'"{message["op"]}" came before "hello".', remedy="Say hello first.")
        identity = self._gate.admit(message, client.process.uid)
        self._has_spoken(connection)
        self._check_others(identity)
        if identity.role == OBSERVER:
            client.identity = identity
            about = {"gpus": identity.gpus, "home": [], "lost": "", "leases": []}
            connection.send(encode("welcome", **self._core.greeting(), **about))
            return
        if identity.role == RESIDENCY:
            self._hello_at_gate(connection, client, identity, message)
            return
        effects = self._core.hello(client.process, identity, message, self._now())
        client.identity, client.tenant = identity, client.process.name
        older = self._tenants.get(client.tenant)
        self._tenants[client.tenant] = connection
        if older is not None:
            older.end(Dropped())
        self._processes.keep(client.tenant, client.process)
        self.carry_out(effects)

    def _has_spoken(self, connection: Channel[bytes]) -> None:
        if (timer := self._silent.pop(connection, None)) is not None:
            timer.cancel()

    def _check_others(self, identity: Identity) -> None:
        """Raise `Conflict` where processes of the same job have all connections that one job may have."""
        of = (identity.job, identity.attempt)
        others = sum(
            one.identity is not None and (one.identity.job, one.identity.attempt) == of for one in self._clients.values()
        )
        if not identity.sees_all and others >= _MOST_OF_A_JOB:
            raise Conflict(
                f"Processes of job {identity.job} have {others} connections to the broker already, and one job has no more.",
                remedy="End some of its processes.",
            )

    def _hello_at_gate(self, connection: Channel[bytes], client: Client, identity: Identity, message: Message) -> None:
        member = client.process.name
        try:
            about = {**message, **descent(client.process, self._core.ledger.tenants)}
            effects = self._core.hello_at_gate(client.process, identity, about, self._now())
        except Unavailable as error:
            _log.info("process %d has to connect again: %s", client.process.pid, error)
            connection.end(Closed("its process has ended"))  # a refusal would be for good
            return
        older, self._members[member] = self._members.get(member), connection
        client.identity, client.member = identity, member
        if older is not None:
            older.end(Dropped())
        self._processes.keep(member, client.process)
        self.carry_out(effects)
        if connection.open:
            ahead = identity.memory == 0
            self._bus.connected(member, identity.owner, message, connection.files(), ahead=ahead)

    def _send_member(self, member: str, line: bytes, files: Sequence[int]) -> None:
        connection = self._members.get(member)
        if connection is not None:
            connection.send(line, files)

    def _progress(self, tenant: str, done: int, of: int) -> None:
        self._core.progress(tenant, done, of, self._now())
        self._feed.changed()

    def _died(self, tenant: str) -> None:
        connections = (self._tenants.pop(tenant, None), self._members.pop(tenant, None))
        self.carry_out(self._core.ended(tenant, self._now()))
        self._bus.ended(tenant)
        for connection in connections:
            if connection is not None:
                connection.end(Closed("its process has ended"))

    # --- operations ---------------------------------------------------------------------------------------------------------

    def _operate(self, connection: Channel[bytes], client: Client, message: Message) -> None:
        op = message["op"]
        assert client.identity is not None
        if client.member:
            effects = self._core.said_at_gate(client.member, message, self._now())
            self._bus.heard(client.member, message)
            if effects is not None:
                self.carry_out(effects)
            if op == "progress":
                self._feed.changed()
            return
        if op in ("status", "watch"):
            client.watching = client.watching or op == "watch"
            self._feed.answer(connection, client.identity)
            if message.get("past") is True and client.identity.sees_all:
                self._handing.begin(connection)
            return
        if op == "drained" and client.identity.sees_all:
            devices = message.get("devices")
            why = {str(uuid): str(reason) for uuid, reason in devices.items()} if isinstance(devices, dict) else {}
            self.carry_out(self._core.drained(why, self._now()))
            return
        if op == "took":
            until = message.get("until")
            self._handing.answered(connection, until if type(until) is int else 0)
            return
        effects = self._core.said(client.tenant, message, self._now())
        if effects is not None:
            self.carry_out(effects)
