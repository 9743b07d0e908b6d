"""Watches the GPUs of the lab's own machine: one with a fault is drained, and its users and administrators are told."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from carrel.core.control.drains import Drains
from carrel.core.control.event_ports import EventLog, NewEvent
from carrel.core.control.news import DEVICE_FAULT
from carrel.core.domain.job import Job
from carrel.core.domain.node import Device
from carrel.core.domain.ports import Clock
from carrel.lab.audit import AuditLog
from carrel.node.devices import DeviceHealth

_log = logging.getLogger(__name__)

#: Seconds between two readings, for which an event is waited for, and after which no reading means that nothing is known.
_READ_SECONDS, _EVENT_SECONDS, _OLD_SECONDS = 10.0, 1.0, 60.0


class DeviceWatch:
    """A thread of its own, since a driver that is ill may keep a call for long. Thread-safe."""

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        drains: Drains,
        holders: Callable[[str], Collection[Job]],
        events: EventLog,
        audit: AuditLog,
        changed: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`holders`: whose jobs and cells are on a device now. `changed` is called when one was drained."""
        self._devices = {device.uuid: device for device in devices if not device.simulated}
        self._drains, self._holders, self._events, self._audit = drains, holders, events, audit
        self._changed, self._clock = changed, clock
        self._known: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device health", daemon=True)

    def start(self) -> None:
        """Begin, where there is something to watch."""
        if self._devices:
            self._thread.start()

    def close(self) -> None:
        """End. A driver that does not answer is not waited for."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * _EVENT_SECONDS)

    def unknown(self) -> frozenset[str]:
        """UUIDs of the real devices of which the driver does not say whether they are well, or has not for a minute."""
        old = time.monotonic() - self._read_at > _OLD_SECONDS
        return frozenset(self._devices) - (frozenset() if old else self._known)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with DeviceHealth([*self._devices.values()]) as health:
                    self._watch(health)
            except Exception:  # noqa: BLE001 - GPUs are watched as long as the lab is there
                _log.exception("Watching the GPUs failed; it is begun again.")
                self._closing.wait(_READ_SECONDS)

    def _watch(self, health: DeviceHealth) -> None:
        read_at = float("-inf")
        while not self._closing.is_set():
            if (now := time.monotonic()) - read_at >= _READ_SECONDS:
                read_at = now
                self._take(health)
            began = time.monotonic()
            found = health.heard(_EVENT_SECONDS)
            for uuid, why in found.items():
                self._fault(uuid, why)
            if not found and time.monotonic() - began < _EVENT_SECONDS / 2:
                self._closing.wait(_EVENT_SECONDS)

    def _take(self, health: DeviceHealth) -> None:
        found = health.read()
        self._known, self._read_at = frozenset(uuid for uuid, why in found.items() if why is not None), time.monotonic()
        for uuid, why in found.items():
            if why:
                self._fault(uuid, why)
            elif why == "":
                self._drains.found_well(uuid)

    def _fault(self, uuid: str, why: str) -> None:
        if not self._drains.found_fault(uuid, why, self._clock()):
            return
        device = self._devices[uuid]
        _log.error("GPU %d (%s) is drained: %s. `carrel undrain %s` returns it.", device.index, device.name, why, uuid)
        self._audit.add({"action": "drain a GPU", "result": "allowed", "rule": "device health", "resource": uuid, "note": why})
        said = f"GPU {device.index} has a fault and is drained: {why}. An attempt that fails on it is tried elsewhere."
        told = [
            NewEvent(job_id=job.id, owner=job.owner, type="progress", data={"message": said, "reason": DEVICE_FAULT})
            for job in self._holders(uuid)
        ]
        if told:
            self._events.append(told, now=self._clock())
        self._changed()
