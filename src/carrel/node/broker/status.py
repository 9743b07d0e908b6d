"""The `status` message: who has what, who waits, whose state is where; names only for those who may see them."""

from __future__ import annotations

from typing import Any

from carrel.core.domain.lease import LeaseState, MoveMethod, Residency, Tier
from carrel.core.domain.ports import Clock
from carrel.node.broker.core.core import Core
from carrel.node.broker.core.identity import Identity
from carrel.node.broker.core.policy_view import off_the_bus
from carrel.node.broker.pool import HostPool

_ON_DEVICE = frozenset({Residency.RESIDENT, Residency.SUSPENDING, Residency.RESUMING})
#: What is blank for a client that may not see whose it is.
_BLANK = {"job": 0, "owner": "", "kernel": "", "label": "", "pid": 0, "cell": ""}
#: Stretches of the last hour in one status, of all devices together: a message has a longest length.
_MOST_STRETCHES = 1000


class Status:
    """Makes status messages; what is the same for all clients is made once for each version of the ledger."""

    def __init__(self, core: Core, clock: Clock, pool: HostPool, *, disk_problem: str = "") -> None:
        """`disk_problem`: why no state goes to the disk although there should be room for some."""
        self._disk_problem = disk_problem
        self._lender = core.lender
        self._clock = clock
        self._pool = pool
        self._ledger = core.ledger
        self._looks = core.device_scans
        self._version: tuple[int, int, int, int] | None = None
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def fields(self, viewer: Identity, *, hour: bool = True) -> dict[str, Any]:
        """The fields of `status` for one client; without `hour` the last hour is empty, which is most of a long one."""
        version = (self._ledger.version, self._lender.decisions, self._looks.device_scans, self._lender.under_way.version)
        if version != self._version:
            self._rows, self._version = self._build(), version
        history = self._ledger.history.get(viewer.job, ()) if viewer.job else ()
        return {
            "broker": self._ledger.broker_id,
            "tier": self._lender.tier.value,
            "simulated": self._lender.tier is Tier.SIMULATED,
            "tasks_lend": self._lender.tasks_lend,
            "devices": self._rows["devices"],
            "tenants": [_shown(row, viewer) for row in self._rows["tenants"]],
            "leases": [_shown(row, viewer) for row in self._rows["leases"]],
            "queue": [_shown(row, viewer) for row in self._rows["queue"]],
            "moves": [_shown(row, viewer) for row in self._rows["moves"]],
            "hour": [_shown(row, viewer) for row in self._rows["hour"]] if hour else [],
            "rates": self._rows["rates"],
            "history": list(history),
            "charges": self._charges() if viewer.sees_all else [],
            "host": self._host(),
        }

    def _host(self) -> dict[str, Any]:
        host, use = self._lender.host, self._pool.use()
        pool = {"limit": use.limit, "given": use.given, "ready": use.ready} if use.limit else None
        room = {"limit": host.limit(), "left": host.left(), "states": host.used, "pool": pool}
        return {**room, "disk": self._disk(), "disk_problem": self._disk_problem}

    def _disk(self) -> dict[str, int] | None:
        disk = self._lender.disk
        return {"limit": disk.limit, "left": disk.left()} if disk.limit else None

    def drifting(self) -> bool:
        """True while something changes of which there is no news: what sessions are charged, the room in host memory."""
        idle = self._lender.tier is Tier.SUSPEND and any(row.residency in _ON_DEVICE for row in self._ledger.tenants.values())
        return idle or any(self._ledger.pays(lease) for lease in self._ledger.leases.values())

    def _build(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "devices": self._devices(),
            "tenants": self._tenants(),
            "leases": self._leases(),
            "queue": self._queue(),
            "moves": self._moves(),
            "hour": self._hour(),
            "rates": [
                {"way": way, "direction": direction, "rate": round(rate)} for (way, direction), rate in self._ledger.rates.items()
            ],
        }

    def _charges(self) -> list[dict[str, Any]]:
        return [
            {"job": row.job, "attempt": row.attempt, "owner": row.owner, "seconds": round(row.seconds, 3)}
            for row in self._ledger.charged(self._clock()).values()
        ]

    def _devices(self) -> list[dict[str, Any]]:
        residents: dict[str, list[str]] = {uuid: [] for uuid in self._lender.devices}
        by: dict[str, list[dict[str, Any]]] = {uuid: [] for uuid in self._lender.devices}
        taken = dict.fromkeys(self._lender.devices, 0)
        withheld = self._ledger.not_lent()
        for row in self._ledger.tenants.values():
            if row.residency in _ON_DEVICE:
                for uuid in row.home:
                    if uuid in residents:
                        residents[uuid].append(row.id)
                        size = row.state.get(uuid, 0)
                        taken[uuid] += size
                        by[uuid].append({"tenant": row.id, "bytes": size, "cached": min(size, row.reserve.get(uuid, 0))})
            if row.unverified:
                withheld |= dict.fromkeys(row.home, "a suspended session's state is still seen on it")
        found = []
        for uuid, device in self._lender.devices.items():
            lease = self._ledger.lease_on(uuid)
            strangers = self._looks.strangers.get(uuid, ())
            found.append(
                {
                    "uuid": uuid,
                    "index": device.index,
                    "name": device.name,
                    "type": device.type,
                    "memory": device.memory,
                    "used": taken[uuid] if device.simulated else self._looks.used.get(uuid, taken[uuid]),
                    "simulated": device.simulated,
                    "withheld": withheld.get(uuid),
                    "lease": None if lease is None else lease.id,
                    "residents": residents[uuid],
                    "by": by[uuid],
                    "known_since": self._ledger.hour.known_since(uuid, self._most()),
                    "strangers": [{"pid": item.pid, "bytes": item.bytes, "name": item.name} for item in strangers],
                    "last_used": self._ledger.device_used.get(uuid, 0.0),
                    "wanted": sum(uuid in self._for(name) for name in self._lender.queue),
                }
            )
        return found

    def _for(self, request: str) -> tuple[str, ...]:
        """The devices that a waiting request is about; () for any."""
        asked = self._ledger.requests[request]
        return asked.devices or self._ledger.tenants[asked.tenant].home

    def _tenants(self) -> list[dict[str, Any]]:
        ways = {name: self._lender.view.way(row) for name, row in self._ledger.tenants.items()}
        return [
            {
                "id": row.id,
                "job": row.job,
                "owner": row.owner,
                "role": row.role,
                "kernel": row.kernel,
                "label": row.label,
                "pid": row.pid,
                "state": row.residency.value,
                "home": list(row.home),
                "bytes": sum(row.state.values()),
                "cached": sum(row.reserve.values()),
                "way": ways[row.id][0].value,
                "not_bus": "" if self._lender.tier is Tier.SIMULATED else off_the_bus(row),
                "suspendable": ways[row.id][0] is not MoveMethod.HOLD,
                "why_not": row.lost or (ways[row.id][1] if ways[row.id][0] is MoveMethod.HOLD else ""),
                "stays": row.broken or row.stays,
                "last_used": row.last_used,
                "retry_at": row.retry_at,
                "failures": row.failures,
                "cells": row.cells,
                "gpu_seconds": round(row.gpu_seconds, 3),
                "waited_seconds": round(row.waited_seconds, 3),
                "background": row.background,
                "context": row.context if row.fixed else "",
                "context_bytes": sum(row.fixed.values()),
            }
            for row in self._ledger.tenants.values()
        ]

    def _moves(self) -> list[dict[str, Any]]:
        found = []
        for move in self._lender.under_way.moves.values():
            row = self._ledger.tenants.get(move.tenant)
            if row is not None:
                found.append(
                    {
                        "tenant": row.id,
                        "job": row.job,
                        "owner": row.owner,
                        "label": row.label,
                        "role": row.role,
                        "devices": list(move.devices),
                        "direction": move.direction,
                        "way": move.way,
                        "bytes": move.of,
                        "done": move.done,
                        "since": move.since,
                        "ends": self._lender.under_way.ends(move),
                    }
                )
        return found

    def _most(self) -> int:
        """Stretches of the last hour that are shown of each device."""
        return _MOST_STRETCHES // max(1, len(self._lender.devices))

    def _hour(self) -> list[dict[str, Any]]:
        now = self._clock()
        return [
            {
                "device": one.device,
                "what": one.what,
                "since": one.since,
                "until": one.until,
                "seconds": one.seconds,
                "job": one.job,
                "owner": one.owner,
                "label": one.label,
                "role": one.role,
            }
            for uuid in self._lender.devices
            for one in self._ledger.hour.shown(uuid, now, self._most())
        ]

    def _leases(self) -> list[dict[str, Any]]:
        found = []
        for lease in self._ledger.leases.values():
            row = self._ledger.tenants[lease.tenant]
            found.append(
                {
                    "id": lease.id,
                    "fence": lease.fence,
                    "tenant": lease.tenant,
                    "job": row.job,
                    "owner": row.owner,
                    "role": row.role,
                    "devices": list(lease.devices),
                    "since": lease.since,
                    "state": lease.state.value,
                    "cell": lease.cell,
                    "held_until": lease.held_until if lease.state is LeaseState.HELD else None,
                    "exclusive": lease.exclusive,
                    "aside": lease.aside,
                    "wanted_since": lease.wanted_since or None,
                }
            )
        return found

    def _queue(self) -> list[dict[str, Any]]:
        found = []
        for name, entry in self._lender.queue.items():
            asked = self._ledger.requests[name]
            row = self._ledger.tenants[asked.tenant]
            found.append(
                {
                    "request": asked.request,
                    "tenant": asked.tenant,
                    "job": row.job,
                    "owner": row.owner,
                    "role": row.role,
                    "gpus": asked.gpus,
                    "devices": list(self._for(name)),
                    "position": entry.position,
                    "since": asked.asked_at,
                    "estimate": entry.estimate,
                    "code": entry.reason.code,
                    "message": entry.reason.message,
                    "resumes": asked.resumes,
                }
            )
        return found


def _shown(row: dict[str, Any], viewer: Identity) -> dict[str, Any]:
    if viewer.may_see(row["owner"]):
        return {**row, "mine": row["owner"] == viewer.owner}
    shown = {**row, **{name: blank for name, blank in _BLANK.items() if name in row}, "mine": False}
    # What a process says of itself is for its owner; others read words of ours.
    return {**shown, "why_not": row["stays"]} if "why_not" in row else shown
