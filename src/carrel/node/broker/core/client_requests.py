"""What clients ask of the broker, one method for each: checked, put into the ledger, settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from carrel.core.domain.errors import Conflict, Denied, Impossible, Invalid
from carrel.core.domain.lease import LeaseState, Residency, Tier
from carrel.core.domain.units import format_duration
from carrel.node.broker.config import BrokerConfig
from carrel.node.broker.core.identity import Identity
from carrel.node.broker.core.lender import Lender
from carrel.node.broker.core.messages import (
    Peer,
    beyond_home,
    granted_fields,
    lost_fields,
    moment_of,
    sizes_of,
    text_of,
    words_of,
)
from carrel.node.broker.core.rows import LeaseRow, RequestRow, TenantRow
from carrel.node.leases.protocol import KERNEL, RUNNER


class ClientRequests:
    """Where clients are served. The core settles after each call."""

    def __init__(self, *, lender: Lender, config: BrokerConfig) -> None:
        self.lender = lender
        self.ledger = lender.ledger
        self.tier = lender.tier
        self.devices = lender.devices
        self._config = config

    # --- tenants come and go ------------------------------------------------------------------------------------------------

    def arrive(self, process: Peer, identity: Identity, hello: Mapping[str, Any]) -> TenantRow:
        """The tenant of a process that said hello; the same one when it was here before."""
        row = self.ledger.tenants.get(process.name)
        if row is None or row.job != identity.job or row.role != identity.role:
            if row is not None:
                raise Conflict(
                    f"Process {process.pid} is known as {row.role} of job {row.job}.",
                    remedy="A process belongs to one job, in one role.",
                )
            row = TenantRow(
                id=process.name,
                pid=process.pid,
                start=process.start,
                uid=process.uid,
                job=identity.job,
                attempt=identity.attempt,
                owner=identity.owner,
                role=identity.role,
                gpus=identity.gpus if identity.role == KERNEL else len(identity.assigned),
                assigned=identity.assigned,
                bound=identity.bound,
                memory=0 if self.tier is Tier.SIMULATED else identity.memory,
            )
            if identity.role == KERNEL and not identity.reserved:
                row.sees = self._suggest(row, row.gpus)
            self.ledger.add_tenant(row)
        elif identity.role == RUNNER and not self.ledger.leases_of(row.id):
            row.assigned = identity.assigned  # a task that was stopped may go on on other devices
        row.kernel, row.label = text_of(hello, "kernel"), text_of(hello, "label")
        self.ledger.touch(row)
        return row

    def welcome(self, row: TenantRow) -> dict[str, Any]:
        """The welcome of a tenant when it comes, or comes again."""
        # One whose state is being brought back was granted before only if it was paused; else it is announced when it is there.
        leases = [lease for lease in self.ledger.leases_of(row.id) if lease.used > 0.0 or not lease.pending]
        return {
            "gpus": row.gpus,
            "home": list(row.home or row.sees),
            "lost": row.lost,
            "leases": [granted_fields(lease, self.devices) for lease in leases],
        }

    def leave(self, tenant: str) -> None:
        """The tenant closed its connection, and may go on living: what it waited for and held is over; its state is not."""
        row = self.ledger.tenants.get(tenant)
        if row is None:
            return
        now = self.lender.now
        row.cache = {}  # nobody is there to give it back
        self.ledger.touch(row)
        for request in self.ledger.requests_of(tenant):
            self.ledger.drop_request(request)
        for lease in self.ledger.leases_of(tenant):
            if lease.gates:
                lease.request = ""
                self.ledger.touch(lease)
            elif lease.state is not LeaseState.HELD or lease.by_choice:
                self.lender.end(row, lease, now, outcome="aborted", cuda=None)

    def drop_waiting(self) -> None:
        """Those who waited when the broker was restarted and have not come back lose their place."""
        for request in list(self.ledger.requests.values()):
            if request.resumes is None and not self.lender.is_here(request):
                self.ledger.drop_request(request)

    def gone(self, tenant: str, *, at: float | None = None) -> None:
        """The process has ended: now, or as far as anybody knows at `at` (Unix seconds)."""
        row = self.ledger.tenants.get(tenant)
        if row is not None:
            self.ledger.drop_tenant(row, self.lender.now if at is None else at, seen=at is None)
            self.lender.look()

    # --- asking and giving back ---------------------------------------------------------------------------------------------

    def acquire(self, row: TenantRow, message: Mapping[str, Any]) -> None:
        """Somebody wants devices. Raises an error of `carrel.core.domain.errors` when they never get them."""
        request = text_of(message, "request")
        if not request:
            raise Invalid("The request has no id.", remedy="Send one that is unique in the process.")
        for lease in self.ledger.leases_of(row.id):
            if lease.request == request:
                if not lease.pending:
                    self.lender.say(row.id, "granted", **granted_fields(lease, self.devices))
                return
        name = f"{row.id}/{request}"
        if name not in self.ledger.requests:
            gpus, devices = self._wanted(row, message)
            asked = RequestRow(
                id=name,
                request=request,
                tenant=row.id,
                gpus=gpus,
                devices=devices,
                cell=text_of(message, "cell"),
                asked_at=self.lender.now,
                exclusive=row.role == RUNNER,
                ends_by=moment_of(message, "ends_by"),
                elsewhere=row.role == RUNNER and message.get("elsewhere") is True,
                # On a node of a cluster no task is a tenant for anything else.
                lends=row.role == RUNNER and (message.get("lends") is True or self._config.shared) and self.tier is not Tier.HOLD,
            )
            if not self._share(row, asked) and self.take_up(row, asked) is None:
                self.ledger.add_request(asked)
                if row.residency is not Residency.RESIDENT:
                    self.lender.look()
        self.lender.retell(name)

    def cancel(self, row: TenantRow, request: str) -> None:
        """The tenant does not want it any more; a lease that was granted for it meanwhile is over."""
        waiting = self.ledger.requests.get(f"{row.id}/{request}")
        if waiting is not None:
            self.ledger.drop_request(waiting)
        for lease in self.ledger.leases_of(row.id):
            if lease.request == request and lease.pending:
                self.lender.end(row, lease, self.lender.now, outcome="aborted", cuda=None)
        self.lender.say(row.id, "cancelled", request=request)

    def release(self, row: TenantRow, message: Mapping[str, Any]) -> None:
        """A cell or a task is over."""
        lease = self.ledger.leases.get(text_of(message, "lease"))
        fence = message.get("fence")
        # Its fence may be from before a pause: the two messages may have passed each other.
        known = lease is not None and lease.tenant == row.id and isinstance(fence, int) and fence <= lease.fence
        # With the library in it, a lease that its cell did not use may have ended before the cell.
        if known or (lease is None and row.gated):
            cuda = message.get("cuda")
            background = message.get("background")
            row.background = background if isinstance(background, int) else 0
            row.starved = message.get("oom") is True
            if "blockers" in message:
                row.blockers = words_of(message["blockers"])
            if self.tier is not Tier.SIMULATED:
                row.cache = sizes_of(message.get("cached"), row.home or (lease.devices if lease is not None else ()))
            self.ledger.touch(row)
            outcome = text_of(message, "outcome") or "ok"
            if lease is not None and lease.gates and row.role == KERNEL:
                # The device may still compute: the library gives it back when it does not.
                lease.request, lease.outcome = "", outcome
                self.ledger.touch(lease)
            elif lease is not None and lease.state is not LeaseState.HELD:
                self.lender.end(row, lease, self.lender.now, outcome=outcome, cuda=cuda if isinstance(cuda, bool) else None)
        self.lender.say(row.id, "released", lease=text_of(message, "lease"))

    def touched(self, row: TenantRow) -> None:
        """The process uses CUDA outside of a lease: its state is where it looks."""
        if row.residency is Residency.NONE and row.sees and not self.ledger.leases_of(row.id):
            self.lender.settle_in(row, row.sees)

    def simulate(self, row: TenantRow, size: object, cached: object = 0) -> None:
        """On simulated devices: the process' made-up state takes so many bytes, of which it keeps some in reserve."""
        if self.tier is Tier.SIMULATED and isinstance(size, int) and not isinstance(size, bool) and size >= 0:
            row.simulated = size
            row.simulated_cache = min(cached, size) if isinstance(cached, int) and cached > 0 else 0
            if row.residency is Residency.RESIDENT:
                if size == 0:
                    row.residency, row.home, row.state, row.cache = Residency.NONE, (), {}, {}
                else:
                    row.growth = max(row.growth, size // len(row.home) - max(row.state.values(), default=0))
                    row.state = dict.fromkeys(row.home, size // len(row.home))
                    row.cache = dict.fromkeys(row.home, row.simulated_cache // len(row.home)) if row.simulated_cache else {}
                    row.peak = max(row.peak, size // len(row.home))
            self.ledger.touch(row)

    def set_gpus(self, row: TenantRow, gpus: object) -> None:
        """From now on the process' cells use so many devices."""
        if not isinstance(gpus, int) or isinstance(gpus, bool) or not 0 <= gpus <= len(self.devices):
            raise Invalid(f"{gpus!r} GPUs cannot be had here.", remedy=f"Ask for 0 to {len(self.devices)}.")
        if row.residency is not Residency.NONE or self.ledger.leases_of(row.id):
            if gpus in (0, len(row.home)):
                row.gpus = gpus
                self.ledger.touch(row)
                self.lender.say(row.id, "home", devices=list(row.home))
                return
            raise Conflict(
                f"The process has GPU state on {len(row.home)} GPU(s) already.", remedy="Restart the kernel, then choose first."
            )
        if row.bound and gpus > len(row.bound):
            raise _beyond_share(gpus, row)
        row.gpus, row.sees = gpus, self._suggest(row, gpus)
        self.ledger.touch(row)
        self.lender.say(row.id, "home", devices=list(row.sees))

    def hold(self, row: TenantRow, seconds: object) -> None:
        """Keep the devices for so long after the cell that runs, or from now on."""
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds <= self._config.longest_hold:
            most = format_duration(self._config.longest_hold)
            raise Invalid(f"A GPU cannot be held for {seconds!r} s.", remedy=f"Ask for at most {most}.")
        now = self.lender.now
        row.hold_until, row.hold_for = (now + seconds, float(seconds)) if seconds else (0.0, 0.0)
        for lease in self.ledger.leases_of(row.id):
            if lease.state is LeaseState.HELD and lease.by_choice:
                lease.held_until = row.hold_until
                self.ledger.touch(lease)
                if not seconds:
                    self.lender.end(row, lease, now, outcome="ok", cuda=None)
        self.ledger.touch(row)
        self.lender.say(row.id, "held", until=row.hold_until or None)

    def wanted_at_gate(self, row: TenantRow, request: str, sees: Sequence[str]) -> RequestRow:
        """What calls ask for that wait at a gate, in a process that sees these devices; () if it has not chosen any yet.

        Raises an error of `carrel.core.domain.errors` when they never get it.
        """
        gpus, devices = self._wanted(row, {})
        seen = tuple(uuid for uuid in sees if uuid in self.devices)
        if seen and not row.home:
            gpus, devices = len(seen), seen
        name = f"{row.id}/{request}"
        return RequestRow(
            id=name, request=request, tenant=row.id, gpus=gpus, devices=devices, gate=True, asked_at=self.lender.now
        )

    def _share(self, row: TenantRow, asked: RequestRow) -> bool:
        """Calls of the process that wait at its gate, or compute, and a cell of it share one place in line, and one lease."""
        for other in self.ledger.requests_of(row.id) if row.gated else ():
            if other.gate and other.resumes is None:
                asked.asked_at = other.asked_at
                if not asked.devices and len(other.devices) == asked.gpus:
                    asked.devices = other.devices  # those that the process sees
                self.ledger.drop_request(other)
        for lease in self.ledger.leases_of(row.id) if row.gated else ():
            usable = lease.state is LeaseState.ACTIVE and not lease.pending and not lease.pausing
            if usable and not lease.request and len(lease.devices) == asked.gpus and not set(asked.devices) - set(lease.devices):
                lease.request, lease.cell, lease.outcome = asked.request, asked.cell, ""
                self.ledger.touch(lease)
                self.lender.say(row.id, "granted", **granted_fields(lease, self.devices))
                return True
        return False

    def take_up(self, row: TenantRow, asked: RequestRow) -> LeaseRow | None:
        """A tenant that holds its devices gets them again at once: nobody else could have them anyway."""
        for lease in self.ledger.leases_of(row.id):
            if lease.state is not LeaseState.HELD or lease.ending or set(asked.devices) - set(lease.devices):
                continue
            if row.residency is Residency.NONE and len(lease.devices) != asked.gpus:
                continue
            now = self.lender.now
            self.ledger.drop_lease(lease, now, outcome="held")
            self.ledger.add_lease(fresh := self.lender.new_lease(row, asked, lease.devices, now))
            if fresh.request:
                self.lender.say(row.id, "granted", **granted_fields(fresh, self.devices))
            return fresh
        return None

    def _wanted(self, row: TenantRow, message: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
        """How many devices the message asks for, and which."""
        devices = words_of(message.get("devices", ()))
        if row.residency is Residency.LOST:
            about = lost_fields(row)
            raise Conflict(about["message"], remedy=about["remedy"], details={"code": about["code"]})
        if row.role == RUNNER:
            if self._config.shared:
                devices = row.assigned
                self._check_task(row)
            strange = [uuid for uuid in devices if uuid not in row.assigned]
            if strange or not devices:
                raise Invalid(
                    f"Job {row.job} asks for {', '.join(strange) or 'no device'}, which placement did not give it.",
                    remedy=f"Ask for some of: {', '.join(row.assigned) or 'none'}.",
                )
            return len(devices), tuple(dict.fromkeys(devices))
        if devices:
            raise Invalid("A kernel cannot choose its devices.", remedy="Leave `devices` out.")
        gpus = message.get("gpus", 0)
        if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0:
            raise Invalid(f"gpus is {gpus!r}.", remedy="Ask for 0 (what the session has) or more.")
        gpus = gpus or len(row.home) or row.gpus
        if row.assigned:
            raise Conflict("The session has GPUs of its own.", remedy="Use them without asking.")
        if gpus == 0:
            raise Conflict("The session borrows no GPUs.", remedy="Say %gpu 1, or start it with --gpus 1.")
        if gpus > len(self.devices):
            raise Impossible(
                f"The cell needs {gpus} GPUs; {len(self.devices)} are lent here.", remedy=f"Ask for at most {len(self.devices)}."
            )
        if row.home and gpus > len(row.home):
            raise beyond_home(gpus, row)
        if row.bound and gpus > len(row.bound):
            raise _beyond_share(gpus, row)
        return gpus, row.bound[:gpus]

    def _check_task(self, row: TenantRow) -> None:
        """On a node of a cluster a task is a tenant where it lends, and there is one on a device.

        Slurm gives a task all shares of a device but one: of two that say so one is wrong, and holds up nobody.
        """
        if not self.lender.tasks_lend:
            raise Denied(f"Job {row.job} has its GPUs from Slurm.", remedy="Use them without asking.")
        taken = [(one.tenant, one.devices) for one in self.ledger.leases.values() if one.exclusive]
        taken += [(one.tenant, one.devices) for one in self.ledger.requests.values() if one.exclusive]
        if any(tenant != row.id and set(devices) & set(row.assigned) for tenant, devices in taken):
            raise Conflict(f"Another task has the devices that job {row.job} names.", remedy="Use them without asking.")

    def _suggest(self, row: TenantRow, gpus: int) -> tuple[str, ...]:
        """The devices that the fewest processes look at; of a process that can use a few only, those."""
        if row.bound:
            return row.bound[:gpus]
        looked = dict.fromkeys(self.devices, 0)
        for row in self.ledger.tenants.values():
            for uuid in row.home or row.sees:
                if uuid in looked:
                    looked[uuid] += 1
        order = sorted(self.devices.values(), key=lambda device: (looked[device.uuid], device.index))
        return tuple(device.uuid for device in order[:gpus])


def _beyond_share(gpus: int, row: TenantRow) -> Impossible:
    number = len(row.bound)
    return Impossible(
        f"The cell needs {gpus} GPUs, but the session has a share of {number} in Slurm.",
        remedy=f"Ask for {number}, or start a session with --gpus {gpus}.",
    )
