"""Everything that a broker knows, and the moves that are possible. No clock, no sockets: those come from outside.

Each move changes rows; `changes` gives all that changed since the last call as a single line of the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from carrel.core.domain.lease import LeaseState
from carrel.core.policy.lend_first_room import first_room
from carrel.node.broker.core.device_history import DeviceHistory, Stretch, plain_stretch
from carrel.node.broker.core.effects import Line
from carrel.node.broker.core.ended_leases import EndedLeases
from carrel.node.broker.core.rows import ChargeRow, LeaseRow, RequestRow, Row, TenantRow, plain, rebuilt
from carrel.node.leases.protocol import KERNEL

#: Finished leases that are remembered of each session.
HISTORY = 50
#: Kernels that have ended and whose appetite is remembered.
PEAKS = 50
#: Sessions without a process whose charges are remembered, for a server that was away when they ended.
CHARGES = 100
_KINDS: dict[str, type[Row]] = {"tenant": TenantRow, "request": RequestRow, "lease": LeaseRow, "charge": ChargeRow}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}


class Ledger:
    """Tenants, leases and the line, with their journal."""

    def __init__(self, *, make_id: str) -> None:
        """`make_id` names this node's broker, unless the journal has a name already."""
        self.tenants: dict[str, TenantRow] = {}
        self.requests: dict[str, RequestRow] = {}
        self.leases: dict[str, LeaseRow] = {}
        #: What sessions are charged for leases that are over; `charged` adds those that run.
        self.charges: dict[str, ChargeRow] = {}
        #: Devices that are not lent, and why.
        self.cordons: dict[str, str] = {}
        #: Those that the lab has drained, and why.
        self.drained: dict[str, str] = {}
        #: Newest first, by job.
        self.history: dict[int, deque[dict[str, Any]]] = {}
        #: Owner, label and the most bytes on one device of kernels that have ended, newest first.
        self.peaks: deque[tuple[str, str, int]] = deque(maxlen=PEAKS)
        #: Unix seconds at which a kernel's lease on the device ended last.
        self.device_used: dict[str, float] = {}
        #: Bytes of state that move in a second, by way and direction; measured last, last.
        self.rates: dict[tuple[str, str], float] = {}
        #: Who computed, paused and moved within the last hour.
        self.hour = DeviceHistory()
        #: Leases of sessions that are over and that the lab has not taken yet.
        self.past = EndedLeases()
        self.broker_id = make_id
        #: The last fence that was given out.
        self.fence = 0
        #: Mean seconds of recent leases, or None.
        self.typical: float | None = None
        #: Grows with each line.
        self.version = 0
        #: The moment of the last line that an earlier broker wrote (Unix seconds); 0: there was none.
        self.resumed_from = 0.0
        self._tables: dict[str, dict[str, Any]] = {
            "tenant": self.tenants,
            "request": self.requests,
            "lease": self.leases,
            "charge": self.charges,
        }
        self._touched: dict[tuple[str, str], None] = {}
        self._written: set[tuple[str, str]] = set()
        self._extra: list[tuple[str, dict[str, Any]]] = []
        #: The lease that occupies each device: what makes a second one impossible.
        self._occupied: dict[str, str] = {}

    # --- rows ---------------------------------------------------------------------------------------------------------------

    def touch(self, *rows: Row) -> None:
        """These rows have changed."""
        for row in rows:
            self._touched[_NAMES[type(row)], row.id] = None

    def add_tenant(self, row: TenantRow) -> None:
        """A process is here for the first time."""
        self.tenants[row.id] = row
        self.touch(row)

    def add_request(self, row: RequestRow) -> None:
        """Somebody waits."""
        self.requests[row.id] = row
        self.touch(row)

    def drop_request(self, row: RequestRow) -> None:
        """It does not wait any more."""
        del self.requests[row.id]
        self.touch(row)

    def add_lease(self, row: LeaseRow) -> None:
        """A new lease, with the next fence. One of whose devices is in another lease is never made: it raises `RuntimeError`."""
        self._occupy(row)
        self.leases[row.id] = row
        self.touch(row)

    def go_on(self, row: LeaseRow, now: float) -> None:
        """A paused lease occupies its devices again, with a new fence. Raises `RuntimeError` when one of them is taken."""
        self._occupy(row)
        row.state, row.since = LeaseState.ACTIVE, now
        self.touch(row)

    def visit(self, owner: str, devices: Iterable[str]) -> None:
        """Work of this owner has the devices; of paused leases on them it is remembered for whom they are paused."""
        taken = set(devices)
        for lease in self.leases.values():
            if lease.state is LeaseState.PAUSED and owner not in lease.visitors and not taken.isdisjoint(lease.devices):
                lease.visitors = (*lease.visitors, owner)
                self.touch(lease)

    def pause(self, row: LeaseRow, now: float) -> None:
        """The lease's state is off its devices: they are free for others."""
        self.account(row, now)
        row.state, row.pending = LeaseState.PAUSED, False
        self._vacate(row)
        self.touch(row)

    def drop_lease(self, row: LeaseRow, now: float, *, outcome: str, seen: bool = True) -> None:
        """The lease is over; its use is accounted for. The end of one that was only held is no end of a cell.

        Not `seen`: it ended at some moment after `now`, when there was no broker.
        """
        self.account(row, now)
        self._vacate(row)
        del self.leases[row.id]
        self.touch(row)
        if row.state is LeaseState.HELD:
            return
        tenant = self.tenants[row.tenant]
        tenant.last_used = now
        tenant.cells += 1
        self.touch(tenant)
        entry: dict[str, Any] = {
            "cell": row.cell,
            "at": row.asked_at,
            "waited": round(row.waited, 3),
            "held": round(row.used, 3),
            "devices": list(row.devices),
            "outcome": outcome,
            **({"busy": round(row.busy / row.looks, 1)} if row.looks else {}),
        }
        more = self.past.add(tenant, entry, now, seen=seen) if tenant.role == KERNEL else {}
        if row.exclusive:
            entry["task"] = True
        else:
            self.device_used |= dict.fromkeys(row.devices, now)
            self.typical = _mean(self.typical, row.used, 0.2)
            tenant.typical = _mean(tenant.typical, row.used, 0.5)
        self._remember(tenant.job, entry)
        self._extra.append(("history", {"job": tenant.job, **entry, **more}))

    def take_past(self, until: int) -> None:
        """The lab has all leases up to this number that are over."""
        if self.past.take(until):
            self._extra.append(("took", {"until": until}))

    def withdraw(self, row: LeaseRow) -> None:
        """The lease was never used: it is as if it had not been granted."""
        self._vacate(row)
        del self.leases[row.id]
        self.touch(row)

    def account(self, row: LeaseRow, now: float) -> None:
        """Count the lease's use until now, for its tenant and for the session's charge; a pause does not count."""
        if row.state is LeaseState.PAUSED:
            return
        seconds = max(0.0, now - row.since)
        row.used += seconds
        row.since = now
        tenant = self.tenants[row.tenant]
        tenant.gpu_seconds += seconds * len(row.devices)
        self.touch(tenant, row)
        if self.pays(row):
            self._charge(tenant, seconds * len(row.devices), now)

    def pays(self, row: LeaseRow) -> bool:
        """True while a session pays for the lease; a task, and a session that has reserved its devices, pay by their attempt."""
        return self.tenants[row.tenant].role == KERNEL and row.state is not LeaseState.PAUSED and not row.pending

    def charged(self, now: float) -> Mapping[str, ChargeRow]:
        """What the cells of each session have borrowed until now, with the leases that run."""
        found = {name: replace(row) for name, row in self.charges.items()}
        for lease in self.leases.values():
            if self.pays(lease):
                fresh = _charge_of(self.tenants[lease.tenant])
                found.setdefault(fresh.id, fresh).seconds += max(0.0, now - lease.since) * len(lease.devices)
        return found

    def drop_tenant(self, row: TenantRow, now: float, *, seen: bool = True) -> None:
        """The process is gone, with all that it had. Not `seen`: it was there at `now`, and nobody knows until when."""
        for request in [request for request in self.requests.values() if request.tenant == row.id]:
            self.drop_request(request)
        for lease in self.leases_of(row.id):
            self.drop_lease(lease, now, outcome="killed", seen=seen)
        del self.tenants[row.id]
        self.touch(row)
        if row.peak:
            self.peaks.appendleft((row.owner, row.label, row.peak))
            self._extra.append(("peak", {"owner": row.owner, "label": row.label, "bytes": row.peak}))

    def first_room(self, row: TenantRow) -> int:
        """Bytes that the process' first cell should have: what the notebook took before, or what most others do; 0: unknown."""
        seen = [(one.owner, one.label, one.peak) for one in self.tenants.values() if one.peak]
        seen += self.peaks
        if row.label:
            for owner, label, peak in seen:
                if (owner, label) == (row.owner, row.label):
                    return peak
        return first_room([peak for _owner, _label, peak in seen])

    def leases_of(self, tenant: str) -> list[LeaseRow]:
        """The tenant's leases."""
        return [lease for lease in self.leases.values() if lease.tenant == tenant]

    def requests_of(self, tenant: str) -> list[RequestRow]:
        """What the tenant waits for."""
        return [request for request in self.requests.values() if request.tenant == tenant]

    def lease_on(self, device: str) -> LeaseRow | None:
        """The lease that occupies the device."""
        name = self._occupied.get(device)
        return None if name is None else self.leases[name]

    def drain(self, devices: Mapping[str, str]) -> None:
        """The lab has drained these, and no others."""
        if devices != self.drained:
            self.drained = dict(devices)
            self._extra.append(("drained", {"devices": self.drained}))

    def not_lent(self) -> dict[str, str]:
        """Why devices are lent to no cell, by their UUIDs."""
        return {**{uuid: f"drained: {why}" for uuid, why in self.drained.items()}, **self.cordons}

    def cordon(self, devices: Iterable[str], why: str) -> None:
        """Lend these devices no more; "" takes that back."""
        for device in devices:
            if why:
                self.cordons[device] = why
            else:
                self.cordons.pop(device, None)
            self._extra.append(("cordon", {"device": device, "why": why}))

    def set_rate(self, way: str, direction: str, rate: float) -> None:
        """States move at this rate in this way and direction."""
        self.rates.pop((way, direction), None)
        self.rates[way, direction] = rate
        self._extra.append(("rate", {"way": way, "direction": direction, "rate": round(rate)}))

    def next_fence(self) -> int:
        """The next fence; it is never given out twice."""
        self.fence += 1
        return self.fence

    def _occupy(self, row: LeaseRow) -> None:
        taken = [device for device in row.devices if self._occupied.get(device, row.id) != row.id]
        if taken:
            other = self.leases[self._occupied[taken[0]]]
            # No error of a client's: this broker does not know what it does any more, and starts again from its journal.
            raise RuntimeError(f"device {taken[0]} is in lease {other.id} (fence {other.fence}) and cannot be in {row.id} too")
        row.fence = self.next_fence()
        self._occupied |= dict.fromkeys(row.devices, row.id)

    def _vacate(self, row: LeaseRow) -> None:
        for device in row.devices:
            if self._occupied.get(device) == row.id:
                del self._occupied[device]

    def _charge(self, tenant: TenantRow, seconds: float, now: float) -> None:
        fresh = _charge_of(tenant)
        row = self.charges.get(fresh.id)
        if row is None:
            self._forget_charges()
            row = self.charges[fresh.id] = fresh
        row.seconds += seconds
        row.at = now
        self.touch(row)

    def _forget_charges(self) -> None:
        """Of sessions that have no process any more only the latest charges are kept."""
        here = {_charge_of(tenant).id for tenant in self.tenants.values()}
        over = sorted((row.at, name) for name, row in self.charges.items() if name not in here)
        for _at, name in over[: max(0, len(over) - CHARGES)]:
            # No line says so: a journal that is read again has them until it is begun anew.
            del self.charges[name]

    def _remember(self, job: int, entry: dict[str, Any]) -> None:
        self.history.setdefault(job, deque(maxlen=HISTORY)).appendleft(entry)

    # --- the journal --------------------------------------------------------------------------------------------------------

    def changes(self, now: float) -> Line | None:
        """The line of what has changed since the last one; None when nothing has. The caller writes it down."""
        if not self._touched and not self._extra:
            return None
        self._extra.extend(("stretch", plain_stretch(one)) for one in self.hour.look(now, self.leases.values(), self.tenants))
        rows: list[tuple[str, dict[str, Any]]] = []
        drops: list[tuple[str, str]] = []
        for kind, name in self._touched:
            row = self._tables[kind].get(name)
            if row is not None:
                rows.append((kind, plain(row)))
                self._written.add((kind, name))
            elif (kind, name) in self._written:
                drops.append((kind, name))
                self._written.discard((kind, name))
        rows.extend(self._extra)
        self._touched.clear()
        self._extra.clear()
        self.version += 1
        return Line(now, tuple(rows), tuple(drops))

    def everything(self, now: float) -> Line:
        """What is true now, for a journal that is begun anew."""
        self._forget_charges()
        about = {
            "id": self.broker_id,
            "fence": self.fence,
            "typical": self.typical,
            "hour": self.hour.since,
            "past": self.past.number,
        }
        rows: list[tuple[str, dict[str, Any]]] = [("broker", about)]
        for kind, table in self._tables.items():
            rows.extend((kind, plain(row)) for row in table.values())
            self._written |= {(kind, name) for name in table}
        rows.extend(("cordon", {"device": device, "why": why}) for device, why in self.cordons.items())
        rows.extend([("drained", {"devices": self.drained})] if self.drained else [])
        known = {tenant.job for tenant in self.tenants.values()}
        for job in [job for job in self.history if job not in known]:
            del self.history[job]
        rows.extend(("history", {"job": job, **entry}) for job, kept in self.history.items() for entry in reversed(kept))
        rows.extend(self.past.written())
        rows.extend(("rate", {"way": way, "direction": to, "rate": round(rate)}) for (way, to), rate in self.rates.items())
        rows.extend(("stretch", values) for values in self.hour.rows(now))
        peaks = reversed(self.peaks)
        rows.extend(("peak", {"owner": owner, "label": label, "bytes": size}) for owner, label, size in peaks)
        self._touched.clear()
        self._extra.clear()
        return Line(now, tuple(rows))

    def replay(self, lines: Iterable[Line]) -> None:
        """Read what an earlier broker wrote down."""
        for at, rows, drops in lines:
            self.resumed_from = at
            for kind, values in rows:
                self._set(kind, values)
            for kind, name in drops:
                self._tables[kind].pop(name, None)
        for table, held in (("request", self.requests), ("lease", self.leases)):
            for name in [name for name, row in held.items() if row.tenant not in self.tenants]:
                self._tables[table].pop(name)
        self._written |= {(kind, name) for kind, rows in self._tables.items() for name in rows}
        for lease in sorted(self.leases.values(), key=lambda lease: lease.fence):
            if lease.state is not LeaseState.PAUSED:
                # Two on one device: the line is damaged that said that the earlier one was over.
                for earlier in {self._occupied[device] for device in lease.devices if device in self._occupied}:
                    self._occupied = {device: name for device, name in self._occupied.items() if name != earlier}
                    del self.leases[earlier]
                self._occupied |= dict.fromkeys(lease.devices, lease.id)
        self.hour.reopen(self.resumed_from, self.leases.values(), self.tenants)

    def _set(self, kind: str, values: dict[str, Any]) -> None:
        if kind in _KINDS:
            row = rebuilt(_KINDS[kind], values)
            self._tables[kind][row.id] = row
            if isinstance(row, LeaseRow):
                self.fence = max(self.fence, row.fence)
        elif kind == "broker":
            self.broker_id, self.typical = str(values["id"]), values.get("typical")
            self.fence = max(self.fence, int(values["fence"]))
            self.hour.since = values.get("hour")
            self.past.number = max(self.past.number, int(values.get("past", 0)))
        elif kind == "drained":
            self.drained = values["devices"]
        elif kind == "cordon":
            self.cordons[values["device"]] = values["why"]
            if not values["why"]:
                del self.cordons[values["device"]]
        elif kind == "rate":
            self.rates.pop((values["way"], values["direction"]), None)
            self.rates[values["way"], values["direction"]] = float(values["rate"])
        elif kind == "stretch":
            self.hour.add(Stretch(**values))
        elif kind == "peak":
            self.peaks.appendleft((str(values["owner"]), str(values["label"]), int(values["bytes"])))
        elif kind == "past":
            self.past.replay(values)
        elif kind == "took":
            self.past.take(int(values["until"]))
        elif kind == "history":
            entry = self.past.replay(values)
            self._remember(int(values["job"]), {name: value for name, value in entry.items() if name != "job"})
            if not values.get("task"):
                over = values["at"] + values["waited"] + values["held"]
                self.device_used |= dict.fromkeys(values["devices"], over)


def _mean(before: float | None, new: float, weight: float) -> float:
    """A mean in which older values weigh less and less."""
    return new if before is None else (1 - weight) * before + weight * new


def _charge_of(tenant: TenantRow) -> ChargeRow:
    """Nothing yet, for the session of the tenant."""
    return ChargeRow(job=tenant.job, attempt=tenant.attempt, owner=tenant.owner)
