"""The node's broker, as the server sees it: started with the lab, watched, and heeded by placement."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from carrel.core.domain.cells import RecordedCell
from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.lease import LendingRules, MoveMethod
from carrel.core.domain.node import Node
from carrel.core.domain.placement import UNKNOWN_STATE, GpuState, IdleState, TaskState
from carrel.core.domain.ports import Clock
from carrel.core.domain.units import format_size
from carrel.lab.server.home import LabHome
from carrel.lab.server.settings import Settings
from carrel.node.broker.config import BrokerConfig, Simulation
from carrel.node.broker.process import SOCKET, BrokerProcess
from carrel.node.leases.client import Broker
from carrel.node.leases.protocol import KERNEL, OBSERVER, RUNNER
from carrel.node.leases.watch import Watch

_log = logging.getLogger(__name__)

#: Longest path of a unix socket that every system takes (unix(7)), with some room.
_LONGEST_PATH = 100
#: Share of the node's memory that suspended GPU state may take.
_HOST_SHARE = 0.5
#: Seconds until a broker that did not start is tried again.
_RETRY_SECONDS = 10.0


class NoLender:
    """A lab in which devices are not lent."""

    #: Where runners and kernels find the broker.
    socket = ""

    def start(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """Nor to close."""

    def status(self) -> Mapping[str, Any]:
        """No device."""
        return {"tier": "", "simulated": False, "devices": [], "tenants": [], "leases": [], "queue": []}

    def lent(self) -> frozenset[str]:
        """No device is kept for cells."""
        return frozenset()

    def gpu_state(self) -> GpuState:
        """And nothing of theirs is on any."""
        return GpuState()

    def notify(self, changed: Callable[[], None]) -> None:
        """Nothing ever changes."""

    def charge(self, report: Callable[[Mapping[tuple[int, int], float]], None]) -> None:
        """Nothing is ever borrowed."""

    def keep(self, cells: Callable[[Sequence[RecordedCell]], bool]) -> None:
        """Nor is it over."""


class Lender:
    """Keeps the broker running and has its last word. Thread-safe."""

    def __init__(
        self,
        *,
        home: LabHome,
        settings: Settings,
        node: Node,
        secret: bytes,
        clock: Clock,
        drained: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`drained`: why devices are given to no cell, by their UUIDs."""
        self._node = node
        self._drained = drained
        self._clock = clock
        self._linger = float(settings.linger_time)
        self._kept = int(settings.session_gpus)
        self._config = broker_config(home, settings, node)
        # Jobs see this directory, so it is there before the broker is, and nothing else is in it.
        self._run_dir = socket_directory(home.run) / "broker"
        self._run_dir.mkdir(mode=0o700, exist_ok=True)
        self._log = home.logs / "broker.log"
        self._token = hmac.new(secret, b"carrel-node", hashlib.sha256).hexdigest()
        self.socket = str(self._run_dir / SOCKET)
        self._process = BrokerProcess(self._run_dir, self._config, log=self._log)
        self._watch: Watch | None = None
        self._status: Mapping[str, Any] = {}
        #: What placement got last.
        self._told: tuple[frozenset[str], GpuState] = (frozenset(), GpuState())
        self._changed: Callable[[], None] = lambda: None
        self._report: Callable[[Mapping[tuple[int, int], float]], None] = lambda _charges: None
        self._keep: Callable[[Sequence[RecordedCell]], bool] = lambda _cells: False
        #: Reports are passed on in the order in which they came.
        self._reporting = threading.Lock()
        self._closing = threading.Event()
        self._starter = threading.Thread(target=self._start, name="broker start", daemon=True)

    def start(self) -> None:
        """Begin to have a broker. The lab does not wait for it: probing a driver may take a while."""
        self._starter.start()

    def close(self) -> None:
        """Stop watching. The broker goes on, and cells with it; where there is nobody to lend to it ends too."""
        self._closing.set()
        self._starter.join(timeout=5)
        if self._watch is not None:
            self._watch.close()
        idle = bool(self._status) and not any(self._status[part] for part in ("tenants", "leases", "queue"))
        if idle:
            self._process.stop()
        else:
            self._process.close()

    def status(self) -> Mapping[str, Any]:
        """The broker's last `status` message; {} while there is none."""
        return self._status

    def notify(self, changed: Callable[[], None]) -> None:
        """Call `changed`, from any thread, when placement has to look again: at what cells keep, and what lies where."""
        self._changed = changed

    def charge(self, report: Callable[[Mapping[tuple[int, int], float]], None]) -> None:
        """Call `report`, from any thread, with what cells have borrowed: devices × seconds by job and attempt."""
        with self._reporting:
            self._report = report
            if self._status:
                self._tell_charges(self._status)

    def keep(self, cells: Callable[[Sequence[RecordedCell]], bool]) -> None:
        """Call `cells`, from a thread, with uses of GPUs that are over; False: they have to be reported again. Before `start`."""
        self._keep = cells

    def lent(self) -> frozenset[str]:
        """UUIDs of devices that cells use, wait for, or used a moment ago, and of cordoned ones: no task gets them."""
        status = self._status
        kept = {device.uuid for device in self._node.devices[: self._kept]}
        if status:
            kept |= kept_for_cells(status, now=self._clock(), linger=self._linger)
        return frozenset(kept)

    def gpu_state(self) -> GpuState:
        """What idle sessions and tasks have on the devices, as far as the broker has said."""
        return state_of(self._status, now=self._clock()) if self._status else GpuState(has_mover=True)

    def _start(self) -> None:
        while not self._closing.is_set():
            try:
                self._process.start()
                self._watch = Broker(self.socket, self._token, OBSERVER).watch(
                    self._heard, past=self._past, drained=self._drained
                )
                return
            except (CarrelError, OSError) as error:
                _log.error("The broker cannot be started: %s It is tried again in %g s.", error, _RETRY_SECONDS)
                self._closing.wait(_RETRY_SECONDS)

    def _heard(self, status: Mapping[str, Any] | None) -> None:
        """From the watch's thread; None while the broker is gone: what it said last is the best guess for placement."""
        with self._reporting:
            self._status = {} if status is None else status
            if status is not None:
                self._tell_charges(status)
        if status is not None:
            told, self._told = self._told, (self.lent(), self.gpu_state())
            if self._told != told:
                self._changed()

    def _past(self, broker: str, leases: Sequence[Mapping[str, Any]]) -> bool:
        try:
            return self._keep(cells_of(broker, leases))
        except Exception:  # noqa: BLE001 - a defect in keeping the past must not make placement blind for the present
            _log.exception("When cells had GPUs could not be taken; the broker tells it again.")
            return False

    def _tell_charges(self, status: Mapping[str, Any]) -> None:
        try:
            self._report(charges_of(status))
        except Exception:  # noqa: BLE001 - a defect in charging must not make placement blind for what cells use
            _log.exception("What cells have borrowed could not be charged; the broker's next report says it, too.")


def charges_of(status: Mapping[str, Any]) -> dict[tuple[int, int], float]:
    """What cells have borrowed by a broker's `status`: devices × seconds by job and attempt."""
    return {(int(row["job"]), int(row["attempt"])): float(row["seconds"]) for row in status["charges"]}


def cells_of(broker: str, leases: Sequence[Mapping[str, Any]]) -> list[RecordedCell]:
    """Uses of GPUs that are over, by a broker's message `past`."""
    return [
        RecordedCell(
            broker=broker,
            number=int(row["n"]),
            session=int(row["job"]),
            attempt=int(row["attempt"]),
            process=str(row["process"]),
            asked_at=float(row["asked"]),
            granted_at=float(row["asked"]) + float(row["waited"]),
            returned_at=None if row["over"] is None else float(row["over"]),
            seen_at=float(row["seen"]),
            computed=float(row["computed"]),
            gpus=int(row["gpus"]),
            devices=tuple(str(uuid) for uuid in row["devices"]),
            gpu_type=str(row["type"]),
            gpu_memory=int(row["memory"]),
            outcome=str(row["outcome"]),
            busy=None if row.get("busy") is None else float(row["busy"]),
        )
        for row in leases
    ]


def kept_for_cells(status: Mapping[str, Any], *, now: float, linger: float) -> set[str]:
    """The devices of a broker's `status` that cells use or wait for, and the cordoned; and those that they used less than
    `linger` seconds ago, but where that state moves over the bus: a cell that comes back has it in a second then.
    """
    kept = {uuid for lease in status["leases"] if lease.get("role") == KERNEL for uuid in lease["devices"]}
    free = [device["uuid"] for device in status["devices"] if device["uuid"] not in kept and not device["withheld"]]
    for row in status["queue"]:
        if row.get("role") == KERNEL:
            # One that can use any device has as many kept for it as it waits for.
            wanted = row.get("devices") or [uuid for uuid in free if uuid not in kept][: int(row["gpus"])]
            kept |= set(wanted)
    kept |= {
        uuid
        for tenant in status["tenants"]
        if tenant.get("role") == KERNEL
        and tenant.get("way") != MoveMethod.BUS
        and tenant["last_used"]
        and now - tenant["last_used"] < linger
        for uuid in tenant["home"]
    }
    return kept | {device["uuid"] for device in status["devices"] if device["withheld"]}


#: So often moves of a task's state fail (three times by its library, then by the driver) before it counts as one that stays.
_TRIES = 6

#: Where a tenant's state takes room on its devices, or is about to.
_THERE = ("resident", "suspending", "resuming")


def state_of(status: Mapping[str, Any], *, now: float) -> GpuState:
    """The state of a broker's `status` that a job's devices have to be cleared of."""
    found = [
        IdleState(
            tenant=row["id"],
            devices=tuple(row["home"]),
            bytes=0 if row["state"] == "suspending" else int(row["bytes"]) - int(row["cached"]),
            stays=_stays(row, now),
        )
        for row in status["tenants"]
        # What a task has on its own devices goes with it, or back to it.
        if row["state"] in _THERE and row["home"] and row.get("role") != RUNNER
    ]
    host = status["host"]
    left = host["left"]
    if left is not None and host["disk"] is not None:
        left = int(max(left, host["disk"]["left"]))  # a state lies in one place: what is left in both is not one room
    tasks = {int(row["job"]): _task_state(row, left) for row in status["tenants"] if row.get("role") == RUNNER}
    return GpuState(states=tuple(found), has_mover=True, tasks=tasks, host_left=left)


def _task_state(row: Mapping[str, Any], left: int | None) -> TaskState:
    size, there = int(row["bytes"]), row["state"] in _THERE
    if row["state"] in ("none", "lost"):
        return UNKNOWN_STATE
    if not row["suspendable"]:
        return TaskState(stays=str(row.get("stays", "")) or "this machine cannot move it")
    if there and row["failures"] >= _TRIES:
        return TaskState(stays=f"moving its GPU state to host memory has failed {row['failures']} times")
    if there and left is not None and size > left:
        return TaskState(stays=f"its GPU state takes {format_size(size)}, and host memory has room for {format_size(left)} more")
    # Whole MiB, so that placement is not asked again for each byte.
    return TaskState(bytes=-(-size // 1024**2) * 1024**2 if there else 0)


def _stays(row: Mapping[str, Any], now: float) -> str:
    if row["state"] == "suspending":
        return ""
    if not row["suspendable"]:
        # Not `why_not`, which a process says of itself: others read this.
        return str(row.get("stays", "")) or "this machine cannot move it"
    return "moving it has just failed; it is tried again" if row.get("retry_at", 0.0) > now else ""


def broker_config(home: LabHome, settings: Settings, node: Node) -> BrokerConfig:
    """The configuration of the node's broker."""
    host_memory = settings.host_memory or int(node.memory * _HOST_SHARE)
    return BrokerConfig(
        node=node.name,
        devices=node.devices,
        state=str(home.broker),
        spool=str(home.spool),
        secret_file=str(home.path / "secret"),
        rules=LendingRules(
            time_slice=float(settings.time_slice),
            task_turn=float(settings.task_turn),
            task_share=min(settings.task_share, 100) / 100,
            host_memory=host_memory,
            state_disk=settings.state_disk or 0,
        ),
        hold_time=float(settings.hold_time),
        host_memory_ready=host_memory * min(settings.host_memory_ready, 100) // 100,
        state_directory=settings.state_directory or str(home.broker / "states"),
        disk_floor=settings.disk_floor,
        simulation=Simulation(
            rate=float(settings.simulate_swap),
            disk_rate=settings.simulate_swap / 4,
            faults=read_faults(settings.simulate_faults),
        ),
    )


def read_faults(text: str) -> Mapping[str, float]:
    """The shares in "lock_timeout=0.05,lost=0.01". Raises `Invalid`."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, share = part.partition("=")
        try:
            found[name.strip()] = float(share)
        except ValueError:
            raise Invalid(f'simulate_faults: "{part}" is no share.', remedy="Write it like lock_timeout=0.05.") from None
    return found


def socket_directory(run: Path) -> Path:
    """A directory for sockets: `run`, or one with a short path where that is too long for a socket."""
    if len(os.fsencode(run / "broker" / SOCKET)) <= _LONGEST_PATH:
        return run
    name = hashlib.sha256(os.fsencode(run)).hexdigest()[:12]
    place = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < 40 else "/tmp") / f"carrel-{os.getuid()}-{name}"
    place.mkdir(mode=0o700, exist_ok=True)
    about = place.lstat()
    if about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise Invalid(f"{place} belongs to somebody else.", remedy="Choose a home with a shorter path.")
    return place
