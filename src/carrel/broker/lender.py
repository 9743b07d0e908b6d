"""The lending itself: what the policy says of the book, carried out; and what becomes of leases and states by it.

Whatever changes the book ends with `settle`: the policy is asked, its decisions become rows, all of it is journaled, only then
are messages sent and states moved. So whatever anybody was told is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from carrel.broker.book import Book
from carrel.broker.config import BrokerConfig
from carrel.broker.host import HostRoom
from carrel.broker.loop import Loop, Timer
from carrel.broker.rows import LeaseRow, RequestRow, Seen, TenantRow
from carrel.broker.stuck import Stuck
from carrel.broker.words import granted_fields, lost_fields
from carrel.domain.lease import DeviceRoom, LeaseState, Lending, LendingSnapshot, Queued, Residency, Tier
from carrel.domain.node import Device
from carrel.domain.ports import Clock
from carrel.leases.protocol import KERNEL, RUNNER
from carrel.policy.lend import lend

_ON_DEVICE = frozenset({Residency.RESIDENT, Residency.SUSPENDING, Residency.RESUMING})
#: Seconds between two looks at the line while somebody waits: estimates grow old, retries come due.
_REFRESH = 2.0


class Post(Protocol):
    """Reaches tenants."""

    def send(self, tenant: str, op: str, **fields: Any) -> None:
        """Send a message; to nobody when the tenant is not connected."""
        ...

    def connected(self, tenant: str) -> bool:
        """True while the tenant has a connection."""
        ...


class Moves(Protocol):
    """Moves states (`carrel.broker.residency`)."""

    def suspend(self, tenant: str, pauses: str | None) -> None:
        """Move the tenant's state to host memory; its row says SUSPENDING."""
        ...

    #: Bytes of state that move in a second, as seen so far; None: nobody knows.
    rate: float | None

    def trim(self, tenant: str) -> None:
        """Have the idle tenant give back what it only keeps in reserve."""
        ...

    def resume(self, tenant: str, lease: str | None) -> None:
        """Bring the tenant's state back; its row says RESUMING."""
        ...


class Holds(Protocol):
    """Ends leases that are held, with a warning (`carrel.broker.holding`)."""

    def review(self, queue: Sequence[Queued], now: float) -> None:
        """Warn the holders of held leases that others want."""
        ...

    def expire(self, lease: LeaseRow, now: float) -> None:
        """The held lease's time is up and somebody waits."""
        ...


class Lender:
    """Lends devices. All methods are called in the loop's thread."""

    def __init__(
        self,
        *,
        book: Book,
        config: BrokerConfig,
        tier: Tier,
        loop: Loop,
        clock: Clock,
        post: Post,
        host_free: Callable[[], int | None],
    ) -> None:
        """`host_free`: bytes of host memory that are free for states now, or None where nobody need care."""
        self.book = book
        self.tier = tier
        self.devices: Mapping[str, Device] = {device.uuid: device for device in config.devices}
        #: Bytes on each device that programs without a lease take, as last seen.
        self.foreign: dict[str, int] = {}
        #: Who waits, and why, as of the last settling: by request id.
        self.queue: dict[str, Queued] = {}
        #: Tenants that were asked to give back what they only keep in reserve, and have not answered yet.
        self.trimming: set[str] = set()
        #: How often the policy was asked.
        self.decisions = 0
        #: Looks at the devices that are wanted, and the last of them that is done: see `look`.
        self.looks_wanted = 0
        self.looks_done = 0
        self.moves: Moves
        self.holds: Holds
        self._config = config
        self._loop = loop
        self._clock = clock
        self._post = post
        self.host = HostRoom(book, config.rules.host_memory, host_free)
        self._stuck = Stuck(book, self.devices, self.host, self.say)
        self._whole = max((device.memory for device in config.devices), default=0)
        self._outbox: list[tuple[str, str, dict[str, Any]]] = []
        self._actions: list[Callable[[], None]] = []
        self._told: dict[str, tuple[int, str, str, float]] = {}
        self._timer: Timer | None = None
        self._settling = False
        #: What was decided has changed the picture: decide once more.
        self._again = False
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back after everything that a status would show differently."""
        self._on_change.append(callback)

    def say(self, tenant: str, op: str, **fields: Any) -> None:
        """Send a message to a tenant, once everything is written down."""
        self._outbox.append((tenant, op, fields))

    def retell(self, request: str) -> None:
        """Whoever asked is told again where they are in the line."""
        self._told.pop(request, None)

    # --- deciding -----------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Decide, write down, act. Raises `OSError` when the journal takes nothing: then nothing was acted on."""
        if self._settling:
            return
        self._settling = True
        try:
            now = self._clock()
            while (self.book.requests or self.queue) and not self._in_the_dark():
                self._again = False
                self._decide(now)
                if not self._again:
                    break
            changed = self.book.commit(now)
        finally:
            self._settling = False
        outbox, self._outbox = self._outbox, []
        actions, self._actions = self._actions, []
        for tenant, op, fields in outbox:
            self._post.send(tenant, op, **fields)
        for action in actions:
            action()
        if changed or outbox:
            for callback in self._on_change:
                callback()

    def look(self) -> None:
        """What is on the devices may have changed: nobody new is let onto one before somebody has looked."""
        if self.tier is not Tier.SIMULATED:
            self.looks_wanted += 1

    def _in_the_dark(self) -> bool:
        """True while somebody waits for whom it matters what was not seen yet. A look takes milliseconds."""
        if self.looks_done >= self.looks_wanted:
            return False
        return any(self.book.tenants[asked.tenant].residency is not Residency.RESIDENT for asked in self.book.requests.values())

    def _decide(self, now: float) -> None:
        self.decisions += 1
        snapshot = self._snapshot(now)
        lending = lend(snapshot, now)
        for decision in lending.lends:
            self._lend(self.book.requests[decision.request], decision.devices, now)
        for suspend in lending.suspends:
            row = self.book.tenants[suspend.tenant]
            if suspend.in_place:
                self.pause(row, self.book.leases[suspend.pauses or ""], now)
                continue
            row.residency = Residency.SUSPENDING
            self.book.touch(row)
            self._actions.append(_later(self.moves.suspend, row.id, suspend.pauses))
        for trim in lending.trims:
            self.trimming.add(trim.tenant)
            self._actions.append(_later(self.moves.trim, trim.tenant))
        lending = replace(lending, queue=self._stuck.review(lending, now))
        self.holds.review(lending.queue, now)
        for expire in lending.expires:
            self.holds.expire(self.book.leases[expire.lease], now)
        self._tell(lending, now)
        self._set_timer(lending, now)

    def _lend(self, asked: RequestRow, devices: tuple[str, ...], now: float) -> None:
        row = self.book.tenants[asked.tenant]
        self.book.drop_request(asked)
        self.retell(asked.id)
        if asked.resumes is not None:
            lease = self.book.leases[asked.resumes]
            self.book.go_on(lease, now)
        else:
            lease = self.new_lease(row, asked, devices, now)
            self.book.add_lease(lease)
        row.sees, row.lends = devices, lease.lends
        self.book.touch(row)
        if row.residency is Residency.SUSPENDED:
            row.residency, lease.pending = Residency.RESUMING, True
            self._actions.append(_later(self.moves.resume, row.id, lease.id))
            return
        made_up = self.tier is Tier.SIMULATED and (row.role == KERNEL or row.lends)
        if made_up and row.residency is Residency.NONE and row.simulated != 0:
            self.settle_in(row, devices)
        if asked.resumes is not None:
            self.say(row.id, "resumed", lease=lease.id, devices=list(lease.devices), fence=lease.fence)
        else:
            self.announce(row, lease, now)

    def announce(self, row: TenantRow, lease: LeaseRow, now: float) -> None:
        """The lease can be used: its holder is told, and the wait is over."""
        waited = max(0.0, now - lease.asked_at)
        if lease.used == 0.0:
            lease.since, lease.waited = now, waited
            row.waited_seconds += waited
        self.book.touch(row, lease)
        self.say(row.id, "granted", **granted_fields(lease, self.devices))

    def _snapshot(self, now: float) -> LendingSnapshot:
        book = self.book
        requests = [
            request
            for request in book.requests.values()
            if request.retry_at <= now and (request.resumes is not None or self._post.connected(request.tenant))
        ]
        asking, computing = {request.tenant for request in requests}, self._computing()
        needed = asking | {lease.tenant for lease in book.leases.values()}
        movable, least = self.tier is not Tier.HOLD, int(self._whole * self._config.rules.least_room)
        unverified: dict[str, str] = {}
        tenants = {}
        for name, row in book.tenants.items():
            if row.unverified:
                unverified.update(dict.fromkeys(row.home, "a suspended session's state is still seen on it"))
            if name in needed or row.residency in _ON_DEVICE:
                seen = Seen(
                    now=now,
                    movable=movable,
                    whole=self._whole,
                    least_room=least,
                    first_room=book.first_room(row) if name in asking else 0,
                    needs=self._made_up(row) if name in asking else 0,
                    computes=name in computing,
                    trimming=name in self.trimming,
                )
                tenants[name] = row.view(seen)
        devices = [
            DeviceRoom(
                uuid=device.uuid,
                memory=device.memory,
                foreign=self.foreign.get(device.uuid, 0),
                withheld=book.cordons.get(device.uuid) or unverified.get(device.uuid),
            )
            for device in self.devices.values()
        ]
        rules = replace(
            self._config.rules,
            host_memory=self.host.limit(),
            move_rate=self.moves.rate,
            # Without a gate in the driver's calls only what computes nothing can be stopped where it is.
            pause_in_place=self.tier is Tier.SIMULATED,
        )
        return LendingSnapshot(
            devices=devices,
            tenants=tenants,
            requests=[request.view(self._config.hold_time) for request in requests],
            leases=[lease.view() for lease in book.leases.values()],
            host_used=self.host.used,
            rules=rules,
            typical_lease=book.typical,
        )

    def computes(self, tenant: str) -> bool:
        """True while a cell or a task of the tenant computes."""
        return tenant in self._computing()

    def _computing(self) -> set[str]:
        return {lease.tenant for lease in self.book.leases.values() if lease.state is LeaseState.ACTIVE}

    def _made_up(self, row: TenantRow) -> int:
        """Bytes on each device that the first cell on simulated devices is going to have; 0: nobody knows."""
        if self.tier is not Tier.SIMULATED or row.role != KERNEL or row.residency is not Residency.NONE:
            return 0
        size = self._config.simulation.state if row.simulated is None else row.simulated
        return min(size // max(1, row.gpus), self._whole)

    def _tell(self, lending: Lending, now: float) -> None:
        """Tell those who wait what is new to them."""
        self.queue = {entry.request: entry for entry in lending.queue}
        self._told = {name: told for name, told in self._told.items() if name in self.queue}
        for entry in lending.queue:
            asked = self.book.requests[entry.request]
            position, code, text, at = self._told.get(entry.request, (0, "", "", 0.0))
            fresh = position != entry.position or code != entry.reason.code
            if asked.resumes is None and (fresh or (text != entry.reason.message and now - at >= 1.0)):
                self._told[entry.request] = (entry.position, entry.reason.code, entry.reason.message, now)
                self.say(
                    asked.tenant,
                    "queued",
                    request=asked.request,
                    position=entry.position,
                    estimate=entry.estimate,
                    code=entry.reason.code,
                    message=entry.reason.message,
                )

    def _set_timer(self, lending: Lending, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.book.requests:
            wait = _REFRESH if lending.again_at is None else min(_REFRESH, max(0.01, lending.again_at - now))
            self._timer = self._loop.later(wait, self.settle)

    # --- what leases and states become --------------------------------------------------------------------------------------

    def movable(self, row: TenantRow) -> bool:
        """True when the tenant's state can be moved at all (a pause after a failure aside)."""
        return self.tier is not Tier.HOLD and not row.why_not

    def settle_in(self, row: TenantRow, devices: tuple[str, ...]) -> None:
        """The tenant has a state on `devices` from now on; its size is a guess until it is seen."""
        row.residency, row.home = Residency.RESIDENT, devices
        if self.tier is Tier.SIMULATED:
            size = self._config.simulation.state if row.simulated is None else row.simulated
            row.state = {uuid: min(size // len(devices), self.devices[uuid].memory) for uuid in devices}
            row.cache = dict.fromkeys(devices, row.simulated_cache // len(devices)) if row.simulated_cache else {}
            row.peak = max(row.peak, *row.state.values())
        else:
            row.state = self._guess(row, devices)
        self.book.touch(row)
        self.keep_in_place(row)

    def _guess(self, row: TenantRow, devices: Sequence[str]) -> dict[str, int]:
        """What a state takes that nobody has seen yet: what others took."""
        first, share = self.book.first_room(row), self._config.rules.unknown_room
        memory = {uuid: self.devices[uuid].memory for uuid in devices}
        return {uuid: min(first, size) if first else int(size * share) for uuid, size in memory.items()}

    def pause(self, row: TenantRow, lease: LeaseRow, now: float) -> None:
        """The lease's devices are free for others; it asks for them again at once."""
        self.book.pause(lease, now)
        self.book.add_request(resumption(row, lease, now))
        self.say(row.id, "paused", lease=lease.id, message="paused: others had waited for their turn; it goes on later")
        self._again = True

    def keep_in_place(self, row: TenantRow) -> None:
        """A state that cannot be moved holds its devices, when nobody else has a lease on them."""
        unmovable = row.residency is Residency.RESIDENT and not self.movable(row)
        if not unmovable or self.book.leases_of(row.id) or any(self.book.lease_on(uuid) for uuid in row.home):
            return
        now = self._clock()
        lease = self.new_lease(row, RequestRow(id="", request="", tenant=row.id, gpus=1, asked_at=now), row.home, now)
        lease.state, lease.held_until = LeaseState.HELD, now + self._config.hold_time
        self.book.add_lease(lease)

    def lose(self, row: TenantRow, message: str) -> None:
        """The tenant's state cannot be brought back."""
        now = self._clock()
        row.residency, row.lost, row.state = Residency.LOST, message, {}
        for lease in self.book.leases_of(row.id):
            if lease.pending and lease.used == 0.0:
                self.book.withdraw(lease)
                self.say(row.id, "refused", request=lease.request, **lost_fields(row))
            else:
                self.book.drop_lease(lease, now, outcome="lost")
        for request in self.book.requests_of(row.id):
            self.book.drop_request(request)
            if request.resumes is None:
                self.say(row.id, "refused", request=request.request, **lost_fields(row))
        self.book.touch(row)
        self.say(row.id, "lost", message=f"The GPU state of this kernel is lost ({message}). Restart the kernel.")

    def end(self, row: TenantRow, lease: LeaseRow, now: float, *, outcome: str, cuda: bool | None) -> None:
        """A lease is over; where the state cannot move (or its owner wants it so) its devices stay with it, held."""
        for request in self.book.requests_of(row.id):
            if request.resumes == lease.id:
                self.book.drop_request(request)
        paused, pending = lease.state is LeaseState.PAUSED, lease.pending
        self.look()
        if row.role == KERNEL and row.residency is Residency.NONE and cuda and self.tier is not Tier.SIMULATED:
            row.residency, row.home = Residency.RESIDENT, lease.devices
            row.state = self._guess(row, lease.devices)
        self.book.drop_lease(lease, now, outcome=outcome)
        if row.role == RUNNER and row.residency is Residency.RESIDENT:
            # Its command is over, or stopped; what it still has there is nobody's to move.
            row.residency, row.home, row.state = Residency.NONE, (), {}
        self.book.touch(row)
        if paused or pending or row.role != KERNEL or lease.ending:
            return
        stays = row.residency is Residency.RESIDENT and not self.movable(row)
        if row.hold_for:
            row.hold_until, row.hold_for = max(row.hold_until, now + row.hold_for), 0.0
        chosen = row.hold_until > now and outcome != "aborted"
        if (stays or chosen) and row.residency is not Residency.SUSPENDING:
            held = replace(
                lease,
                state=LeaseState.HELD,
                since=now,
                used=0.0,
                waited=0.0,
                by_choice=not stays,
                held_until=max(now + self._config.hold_time if stays else 0.0, row.hold_until),
                request="",
            )
            held.id = f"lease-{self.book.fence + 1}"
            self.book.add_lease(held)

    def new_lease(self, row: TenantRow, asked: RequestRow, devices: tuple[str, ...], now: float) -> LeaseRow:
        """A lease on `devices` for what was asked; the book gives it its fence."""
        return LeaseRow(
            id=f"lease-{self.book.fence + 1}",
            fence=0,
            tenant=row.id,
            request=asked.request,
            devices=devices,
            state=LeaseState.ACTIVE,
            cell=asked.cell,
            asked_at=asked.asked_at,
            since=now,
            waited=max(0.0, now - asked.asked_at),
            exclusive=asked.exclusive,
            lends=asked.lends,
            began=now,
            ends_by=asked.ends_by,
        )


def resumption(row: TenantRow, lease: LeaseRow, now: float) -> RequestRow:
    """What a paused lease asks for: to go on."""
    return RequestRow(
        id=f"{row.id}/{lease.id} goes on",
        request=lease.request,
        tenant=row.id,
        gpus=len(lease.devices),
        devices=lease.devices if lease.exclusive else (),
        cell=lease.cell,
        asked_at=now,
        exclusive=lease.exclusive,
        lends=lease.lends,
        resumes=lease.id,
    )


def _later(function: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: function(*arguments)
