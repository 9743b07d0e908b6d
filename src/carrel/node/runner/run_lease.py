"""The lease of a command's devices, as its watch uses it: given back, set aside and taken again."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import Launch
from carrel.core.spool import AttemptDirectory, LogWriter
from carrel.node.runner.signals import Signals

if TYPE_CHECKING:
    from carrel.core.domain.ports import Clock
    from carrel.node.leases.client import Broker, Lease
    from carrel.node.leases.protocol import Message


class RunLease:
    """The devices of one attempt's command: the broker's lease and the machine-wide locks.

    Others may have them while the command is stopped or paused.
    """

    def __init__(
        self,
        directory: AttemptDirectory,
        launch: Launch,
        token: str,
        log: LogWriter,
        signals: Signals,
        *,
        monotonic: Clock,
        device_locks: Sequence[int],
    ) -> None:
        self._directory = directory
        self._launch = launch
        self._token = token
        self._log = log
        self._signals = signals
        self._monotonic = monotonic
        self._device_locks = device_locks
        #: Holds the devices against cells of sessions; closing it gives them back.
        self._broker: Broker | None = None
        self._granted: Lease | None = None
        #: Others are to have the devices, or have them.
        self._aside = False
        #: True where nothing but a stop keeps the command from computing while it is paused: simulated devices.
        self.freezes = any(device.simulated for device in launch.devices)
        #: True where the walltime stands still while others have the devices; Slurm's runs on.
        self.walltime_stops = not launch.shares
        #: For how many people the devices were taken until now; None: nobody says.
        self.people: int | None = None

    def take(self, report: Callable[[str], None], deadline: float, *, elsewhere: bool = False) -> None:
        """Wait until the devices are the command's own, where a broker lends them (`lease.take_lease`)."""
        if not self._launch.devices or not self._launch.paths.broker:
            return
        from carrel.node.runner.lease import take_lease

        try:
            found = take_lease(
                self._launch,
                self._token,
                report=report,
                stop=self._signals.wanted_elsewhere,
                deadline=deadline,
                monotonic=self._monotonic,
                elsewhere=elsewhere,
                attempt=str(self._directory.path),
            )
        except CarrelError as error:
            if not self._launch.shares:
                raise
            # Slurm has given it the device, also if the node's broker says otherwise.
            self._log.note(f"It does not lend its GPU to cells: {error.message}")
            return
        if found is not None:
            self._broker, self._granted = found
            self.freezes = self._granted.simulated

    @property
    def lent(self) -> bool:
        """A broker has lent the command's devices, and may have more to say."""
        return self._broker is not None

    def fileno(self) -> int | None:
        """Readable when `hear` has news; None while the broker cannot be heard: then it is asked again after a while."""
        return self._broker.fileno() if self._broker is not None else None

    def hear(self) -> Sequence[str]:
        """What has become of the devices since the last call: "paused" (cells have them), "aside" (others have them until
        `go_on`), "resumed" (they are back), "lost" (they are, and what the command had on them is not).

        What is for the owner to read is noted in the log.
        """
        if self._broker is None:
            return []
        heard = self._broker.hear()
        for message in heard:
            if message["op"] == "notice":
                self._log.note(str(message.get("message", "")))
            people = message.get("people")
            if isinstance(people, int):
                self.people = max(self.people or 0, people)
        said = [self._word(message) for message in heard]
        if "aside" in said:
            unlock(self._device_locks)
        return said

    def _word(self, message: Message) -> str:
        """What a message is about. Of whether others are to have the devices, the runner's own last word counts."""
        if message.get("aside") is True:
            return "aside" if self._aside and message["op"] == "paused" else ""
        return str(message["op"])

    def set_aside(self) -> bool:
        """Others are to have the devices: `hear` says "aside" once the command is paused.

        False where the broker moves nothing: then its processes have to be stopped.
        """
        if self._broker is None or self._granted is None or self.freezes:
            return False
        self._aside = True
        self._broker.set_aside(self._granted)
        return True

    def go_on(self) -> bool:
        """After `set_aside`: `hear` says "resumed" once the devices are the command's own again.

        False while another lab on this machine has one of them: ask again.
        """
        assert self._broker is not None
        assert self._granted is not None
        if not lock(self._device_locks):
            return False
        self._aside = False
        self._broker.go_on(self._granted)
        return True

    def give_back(self) -> None:
        """While the command is stopped others may have its devices."""
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def take_again(self) -> bool:
        """Wait until the devices are the command's own again; False when somebody wants its end or its place meanwhile."""
        self.take(lambda _message: None, self._monotonic() + self._launch.limits.prepare)
        return not self._signals.wanted_elsewhere()


def unlock(locks: Sequence[int]) -> None:
    """Others may have the devices. The descriptors stay open for `lock`."""
    for fd in locks:
        fcntl.flock(fd, fcntl.LOCK_UN)


def lock(locks: Sequence[int]) -> bool:
    """Have all devices again, or none: False when somebody else has one. Those that are had already do no harm."""
    try:
        for fd in locks:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        unlock(locks)
        return False
    return True
