"""The lending itself: what the policy says of the ledger, carried out; and what becomes of leases and states by it.

The core settles after each event: the policy is asked, its decisions become rows, and all of it is one line of the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from carrel.core.domain.lease import (
    LeaseState,
    Lending,
    Queued,
    Residency,
    Tier,
)
from carrel.core.domain.node import Device
from carrel.core.policy.lend import lend
from carrel.node.broker.config import BrokerConfig
from carrel.node.broker.core.effects import NEVER, Tell
from carrel.node.broker.core.host import DiskRoom, HostRoom
from carrel.node.broker.core.ledger import Ledger
from carrel.node.broker.core.messages import beyond_home, granted_fields, lost_fields
from carrel.node.broker.core.policy_view import PolicyView
from carrel.node.broker.core.rates import Rates
from carrel.node.broker.core.rows import LeaseRow, RequestRow, TenantRow
from carrel.node.broker.core.stuck import Stuck
from carrel.node.broker.core.under_way import UnderWay
from carrel.node.leases.protocol import KERNEL, RUNNER

#: Seconds between two looks at the line while somebody waits: estimates grow old, retries come due.
_REFRESH = 2.0


class Lender:
    """Lends devices: asks the policy, and makes rows of what it says."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        tier: Tier,
        *,
        rate: float | None,
        back_rate: float | None = None,
        disk: bool = False,
        homes_move: bool = False,
    ) -> None:
        """`rate`, `back_rate`: bytes of state that should move in a second, out and back; None: nobody knows.

        `disk`: states of real devices can go to the disk; `homes_move`: and come back on other devices.
        """
        self.ledger = ledger
        self.tier = tier
        self.devices: Mapping[str, Device] = {device.uuid: device for device in config.devices}
        #: The moment of the event at hand (Unix seconds).
        self.now = 0.0
        #: Tenants that have a connection of their own, as a kernel's hook or a runner.
        self.here: set[str] = set()
        #: Processes whose library is connected, by tenant.
        self.members: dict[str, set[str]] = {}
        #: Bytes on each device that programs without a lease take, as last seen.
        self.foreign: dict[str, int] = {}
        #: Who waits, and why, as of the last settling: by request id.
        self.queue: dict[str, Queued] = {}
        #: Tenants that were asked to give back what they only keep in reserve, and have not answered yet.
        self.trimming: set[str] = set()
        #: Tenants whose states leave their devices now, piece by piece, and of which nothing computes.
        self.leaving: set[str] = set()
        #: How fast states move, and those that move now.
        self.rates = Rates(ledger, out=rate, back=back_rate or rate, disk=config.rules.disk_rate)
        self.under_way = UnderWay(self.rates, "simulated" if tier is Tier.SIMULATED else "driver")
        #: How often the policy was asked.
        self.decisions = 0
        #: Looks at the devices that are wanted, and the last of them that is done: see `look`.
        self.looks_wanted = 0
        self.looks_done = 0
        #: When the line is looked at again although there is no news (Unix seconds).
        self.again_at = NEVER
        self.host = HostRoom(ledger, config.rules.host_memory, past_host=tier is Tier.SIMULATED)
        self.disk = DiskRoom(ledger, config.rules.state_disk if disk or tier is Tier.SIMULATED else 0)
        self.tells: list[Tell] = []
        #: Why processes of a tenant do not get what they wait for at their gates, until they have the answer.
        self.refused: dict[str, dict[str, Any]] = {}
        #: States that are to be brought back by this settling, with the lease that waits for each.
        self.resuming: list[tuple[str, str]] = []
        self._config = config
        self._stuck = Stuck(ledger, self.devices, self.host, self.refuse)
        #: What the policy sees of all this.
        self.view = PolicyView(
            ledger,
            config,
            tier,
            devices=self.devices,
            rates=self.rates,
            host=self.host,
            disk=self.disk,
            foreign=self.foreign,
            trimming=self.trimming,
            leaving=self.leaving,
            homes_move=homes_move,
        )
        self._told: dict[str, tuple[int, str, str, float]] = {}

    @property
    def tasks_lend(self) -> bool:
        """True where tasks can lend to cells."""
        return self.tier is not Tier.HOLD and self._config.rules.most_lent > 0.0

    def say(self, tenant: str, op: str, **fields: Any) -> None:
        """Send a message to a tenant, once everything is written down."""
        self.tells.append(Tell(tenant, op, fields))

    def say_member(self, member: str, op: str, **fields: Any) -> None:
        """Send a message to the library in a process, once everything is written down."""
        self.tells.append(Tell("", op, fields, member))

    def refuse(self, asked: RequestRow, **fields: Any) -> None:
        """The tenant gets the answer that it does not get it; so do the processes that wait at their gates, each for its
        request."""
        if asked.gate:
            self.refused[asked.tenant] = fields
        else:
            self.say(asked.tenant, "refused", request=asked.request, **fields)

    def retell(self, request: str) -> None:
        """The tenant gets its place in the line again."""
        self._told.pop(request, None)

    # --- deciding -----------------------------------------------------------------------------------------------------------

    def decide(self) -> Lending | None:
        """Ask the policy and lend; None when nobody waits, or when nobody can say before the devices were looked at."""
        if not self.ledger.requests and not self.queue:
            self.again_at = NEVER
            return None
        if self._in_the_dark():
            # What comes of the look asks again; the moment that has come must not ask for ever.
            self.again_at = NEVER if self.again_at <= self.now else self.again_at
            self.queue = {name: entry for name, entry in self.queue.items() if name in self.ledger.requests}
            return None
        self.decisions += 1
        for asked in [one for one in self.ledger.requests.values() if one.resumes is None]:
            row = self.ledger.tenants[asked.tenant]
            if 0 < len(row.home) < asked.gpus:  # it has used CUDA while it waited
                error = beyond_home(asked.gpus, row)
                self.ledger.drop_request(asked)
                self.refuse(asked, code=error.code, message=error.message, remedy=error.remedy)
        requests = [
            request
            for request in self.ledger.requests.values()
            if request.retry_at <= self.now and (request.resumes is not None or self.is_here(request))
        ]
        lending = lend(self.view.snapshot(requests, self.now), self.now)
        self.again_at = NEVER
        for decision in lending.lends:
            self._lend(self.ledger.requests[decision.request], decision.devices, self.now)
        return replace(lending, queue=self._stuck.review(lending, self.now)) if lending.queue or lending.gives_up else lending

    def look(self) -> None:
        """What is on the devices may have changed: nobody new is let onto one before somebody has looked."""
        if self.tier is not Tier.SIMULATED:
            self.looks_wanted += 1

    def _in_the_dark(self) -> bool:
        """True while somebody waits for whom it matters what was not seen yet. A look takes milliseconds."""
        if self.looks_done >= self.looks_wanted:
            return False
        return any(
            self.ledger.tenants[asked.tenant].residency is not Residency.RESIDENT for asked in self.ledger.requests.values()
        )

    def _lend(self, asked: RequestRow, devices: tuple[str, ...], now: float) -> None:
        row = self.ledger.tenants[asked.tenant]
        self.ledger.drop_request(asked)
        self.retell(asked.id)
        away = row.residency in (Residency.SUSPENDED, Residency.SPILLED)
        if away and set(devices) != set(row.home):
            row.move_home(devices)
        if asked.resumes is not None:
            lease = self.ledger.leases[asked.resumes]
            lease.devices = devices
            self.ledger.go_on(lease, now)
        else:
            lease = self.new_lease(row, asked, devices, now)
            self.ledger.add_lease(lease)
        self.ledger.visit(row.owner, devices)
        row.sees, row.lends = devices, lease.lends
        self.ledger.touch(row)
        if away:
            row.residency, lease.pending = Residency.RESUMING, True
            self.resuming.append((row.id, lease.id))
            return
        made_up = self.tier is Tier.SIMULATED and (row.role == KERNEL or row.lends)
        if made_up and row.residency is Residency.NONE and row.simulated != 0:
            self.settle_in(row, devices)
        if asked.resumes is not None:
            self.resumed(row, lease)
        else:
            self.announce(row, lease, now)

    def resumed(self, row: TenantRow, lease: LeaseRow) -> None:
        """A paused lease goes on, and its state is there: its holders get a message."""
        self.say(row.id, "resumed", lease=lease.id, devices=list(lease.devices), fence=lease.fence, people=lease.people)
        for member in lease.gates:
            self.say_member(member, "go", id=0, lease=lease.id, fence=lease.fence)

    def announce(self, row: TenantRow, lease: LeaseRow, now: float) -> None:
        """The lease can be used: its holder gets it, and the wait is over."""
        waited = max(0.0, now - lease.asked_at)
        if lease.used == 0.0:
            lease.since, lease.waited = now, waited
            row.waited_seconds += waited
        self.ledger.touch(row, lease)
        if lease.request:
            self.say(row.id, "granted", **granted_fields(lease, self.devices))

    def tell(self, lending: Lending, now: float) -> None:
        """Tell those who wait what is new to them."""
        self.queue = {entry.request: entry for entry in lending.queue}
        self._told = {name: told for name, told in self._told.items() if name in self.queue}
        for entry in lending.queue:
            asked = self.ledger.requests[entry.request]
            position, code, text, at = self._told.get(entry.request, (0, "", "", 0.0))
            fresh = position != entry.position or code != entry.reason.code
            if asked.resumes is None and (fresh or (text != entry.reason.message and now - at >= 1.0)):
                self._told[entry.request] = (entry.position, entry.reason.code, entry.reason.message, now)
                if asked.gate:
                    for member in self.members.get(asked.tenant, ()):
                        self.say_member(member, "queued", request=asked.request, message=entry.reason.message)
                self.say(
                    asked.tenant,
                    "queued",
                    request=asked.request,
                    position=entry.position,
                    estimate=entry.estimate,
                    code=entry.reason.code,
                    message=entry.reason.message,
                )
        if self.ledger.requests:
            wait = _REFRESH if lending.again_at is None else min(_REFRESH, max(0.01, lending.again_at - now))
            self.again_at = min(self.again_at, now + wait)

    # --- what leases and states become --------------------------------------------------------------------------------------

    def is_here(self, request: RequestRow) -> bool:
        """True when the tenant that asked has a connection."""
        return request.tenant in (self.members if request.gate else self.here)

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
        self.ledger.touch(row)
        self.keep_in_place(row)

    def _guess(self, row: TenantRow, devices: Sequence[str]) -> dict[str, int]:
        """What a state takes that nobody has seen yet: what others took."""
        first, share = self.ledger.first_room(row), self._config.rules.unknown_room
        memory = {uuid: self.devices[uuid].memory for uuid in devices}
        return {uuid: min(first, size) if first else int(size * share) for uuid, size in memory.items()}

    def pause(self, row: TenantRow, lease: LeaseRow, now: float) -> None:
        """The lease's devices are free for others; it asks for them again at once, unless its task is preempted."""
        self.ledger.pause(lease, now)
        if not lease.aside:
            self.ledger.add_request(resumption(row, lease, now))
        self.say_paused(row, lease)

    def say_paused(self, row: TenantRow, lease: LeaseRow) -> None:
        """Tell the holder of a lease that it is paused."""
        message = "paused: others had waited for their turn; it goes on later"
        self.say(row.id, "paused", lease=lease.id, message=message, people=lease.people, aside=lease.aside)

    def keep_in_place(self, row: TenantRow) -> None:
        """A state that cannot be moved holds its devices, when nobody else has a lease on them."""
        unmovable = row.residency is Residency.RESIDENT and not self.view.movable(row)
        if not unmovable or self.ledger.leases_of(row.id) or any(self.ledger.lease_on(uuid) for uuid in row.home):
            return
        now = self.now
        lease = self.new_lease(row, RequestRow(id="", request="", tenant=row.id, gpus=1, asked_at=now), row.home, now)
        lease.state, lease.held_until = LeaseState.HELD, now + self._config.hold_time
        self.ledger.add_lease(lease)

    def lose(self, row: TenantRow, message: str) -> None:
        """The tenant's state cannot be brought back."""
        now = self.now
        row.residency, row.lost, row.state, row.on_disk = Residency.LOST, message, {}, False
        for lease in self.ledger.leases_of(row.id):
            if lease.pending and lease.used == 0.0:
                self.ledger.withdraw(lease)
                self.say(row.id, "refused", request=lease.request, **lost_fields(row))
            else:
                self.ledger.drop_lease(lease, now, outcome="lost")
        for request in self.ledger.requests_of(row.id):
            self.ledger.drop_request(request)
            if request.resumes is None:
                self.refuse(request, **lost_fields(row))
        self.ledger.touch(row)
        self.say(row.id, "lost", message=f"The GPU state of this kernel is lost ({message}). Restart the kernel.")
        for member in self.members.get(row.id, ()):
            self.say_member(member, "lost", message=message)

    def end(self, row: TenantRow, lease: LeaseRow, now: float, *, outcome: str, cuda: bool | None) -> None:
        """A lease is over; where the state cannot move (or its owner wants it so) its devices stay with it, held."""
        for request in self.ledger.requests_of(row.id):
            if request.resumes == lease.id:
                self.ledger.drop_request(request)
        paused, pending = lease.state is LeaseState.PAUSED, lease.pending
        self.look()
        if row.role == KERNEL and row.residency is Residency.NONE and cuda and self.tier is not Tier.SIMULATED:
            row.residency, row.home = Residency.RESIDENT, lease.devices
            row.state = self._guess(row, lease.devices)
        self.ledger.drop_lease(lease, now, outcome=outcome)
        if row.role == RUNNER and row.residency is Residency.RESIDENT:
            # Its command is over, or stopped; what it still has there is nobody's to move.
            row.residency, row.home, row.state, row.fixed = Residency.NONE, (), {}, {}
        self.ledger.touch(row)
        if paused or pending or row.role != KERNEL or lease.ending:
            return
        stays = row.residency is Residency.RESIDENT and not self.view.movable(row)
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
                gates=(),
                asked_back=False,
                pausing=False,
                outcome="",
            )
            held.id = f"lease-{self.ledger.fence + 1}"
            self.ledger.add_lease(held)

    def new_lease(self, row: TenantRow, asked: RequestRow, devices: tuple[str, ...], now: float) -> LeaseRow:
        """A lease on `devices` for what was asked; the ledger gives it its fence."""
        return LeaseRow(
            id=f"lease-{self.ledger.fence + 1}",
            fence=0,
            tenant=row.id,
            # The library hears that it has a lease when its gate is to be opened (`core.gate`).
            request="" if asked.gate else asked.request,
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


def asked_again(row: TenantRow, lease: LeaseRow) -> RequestRow:
    """What a lease was asked for with that was never used: it is to be lent anew, in its old place."""
    return RequestRow(
        id=f"{row.id}/{lease.request}",
        request=lease.request,
        tenant=row.id,
        gate=not lease.request,
        gpus=len(lease.devices),
        cell=lease.cell,
        asked_at=lease.asked_at,
        exclusive=lease.exclusive,
        ends_by=lease.ends_by,
        lends=lease.lends,
        devices=lease.devices if lease.exclusive else (),
    )
