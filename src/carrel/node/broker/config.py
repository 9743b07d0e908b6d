"""The configuration of a broker: one JSON file, without secrets (it names the file that holds the lab's)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from carrel import __version__
from carrel.core.domain.errors import Invalid, Unavailable
from carrel.core.domain.lease import LendingRules
from carrel.core.domain.node import Device
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.domain.units import GIB

#: Faults that simulated devices can act out, and what each is.
FAULTS: dict[str, str] = {
    "lock_timeout": "A suspension does not begin: the process is busy (tried again later).",
    "checkpoint_error": "A suspension fails, and the state can never be moved (the session holds its GPU).",
    "checkpoint_lost": "A suspension loses the state.",
    "unverified": "After a suspension the device still shows the process for a while (it is not lent meanwhile).",
    "restore_retry": "Bringing a state back does not begin (tried again later).",
    "disk_full": "A state in host memory does not get onto the disk (tried again later).",
    "disk_lost": "Bringing a state from the disk loses it.",
    "lost": "Bringing a state back loses it.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """How simulated devices behave."""

    #: Bytes of state that a device moves to or from host memory in a second.
    rate: float = 8.0 * GIB
    #: The same between host memory and the disk.
    disk_rate: float = 2.0 * GIB
    #: Bytes of state that a process has after its first lease, when it says nothing else.
    state: int = 2 * GIB
    #: Name of a fault (`FAULTS`) to its share of all moves.
    faults: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise Invalid(f"The swap rate of simulated devices is {self.rate}.", remedy="Give bytes a second, more than 0.")
        for name, share in self.faults.items():
            if name not in FAULTS:
                raise Invalid(f'"{name}" is no fault of simulated devices.', remedy=f"Choose from: {', '.join(FAULTS)}.")
            if not 0 <= share <= 1:
                raise Invalid(f"The share of the fault {name} is {share}.", remedy="Give a number from 0 to 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Everything about one node's broker. Times in seconds, sizes in bytes."""

    node: str
    devices: tuple[Device, ...]
    #: Directory of the broker's own: journal, lock, log. It ends when this directory is gone.
    state: str
    #: The lab's spool: launch files and claims of the jobs that kernels and runners belong to.
    spool: str
    #: File with the lab's secret in hexadecimal, mode 0600.
    secret_file: str
    rules: LendingRules = field(default_factory=LendingRules)
    #: How long GPU state that cannot be moved keeps its device while others wait.
    hold_time: float = 1800.0
    #: Longest time that `%gpu hold` may ask for.
    longest_hold: float = 3600.0
    #: How long a process that was asked to let go of its device has until it is killed.
    grace: float = 10.0
    #: How long the place of a process in the line is kept when it does not connect again (the broker was restarted).
    reconnect_time: float = 60.0
    #: True: GPU state is never moved (tier hold), with any driver.
    never_suspend: bool = False
    #: True on a node of a cluster: Slurm says which devices a session has a share of, and kernels belong to many users.
    shared: bool = False
    #: Bytes of `LendingRules.host_memory` that are touched at the start and kept ready; on real devices.
    host_memory_ready: int = 0
    #: Where states lie that host memory has no room for (`LendingRules.state_disk`), and how much of its disk stays free (None:
    #: as `carrel.core.domain.storage.Disk.floor` says).
    state_directory: str = ""
    disk_floor: int | None = None
    simulation: Simulation = field(default_factory=Simulation)
    #: How many journals of earlier runs are kept; for those who look for a fault.
    keep_journals: int = 1
    version: str = __version__

    @property
    def simulated(self) -> bool:
        """True when there is no hardware behind the devices."""
        return bool(self.devices) and all(device.simulated for device in self.devices)

    def digest(self) -> str:
        """A name of this very configuration: a broker with another one is replaced."""
        return hashlib.sha256(json.dumps(to_plain(self), sort_keys=True).encode()).hexdigest()[:16]

    def secret(self) -> bytes:
        """The lab's secret. Raises `Unavailable` when the file cannot be read."""
        try:
            return bytes.fromhex(Path(self.secret_file).read_text().strip())
        except (OSError, ValueError) as error:
            raise Unavailable(
                f"The lab's secret cannot be read from {self.secret_file}: {error}.", remedy="Restart the lab."
            ) from error


def write_config(path: Path, config: BrokerConfig) -> None:
    """Write `config` to `path`, all at once, mode 0600."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(to_plain(config), file, indent=1)
    temporary.replace(path)


def read_config(path: Path) -> BrokerConfig:
    """The configuration in `path`. Raises `Invalid` with the reason when there is none."""
    try:
        return from_plain(BrokerConfig, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise Invalid(f"{path} is no configuration of a broker: {error}.", remedy="`carrel up` writes one.") from error
