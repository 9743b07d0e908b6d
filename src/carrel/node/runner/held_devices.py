"""What the watch of a command needs of the holder of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class HeldDevices(Protocol):
    """The devices of a command, which others may have while it is stopped or paused."""

    #: True where nothing but a stop keeps the command from computing while it is paused: simulated devices.
    freezes: bool
    #: True where the walltime stands still while others have the devices; Slurm's runs on.
    walltime_stops: bool

    @property
    def lent(self) -> bool:
        """There is a broker that has lent them, and may have more to say."""

    def fileno(self) -> int | None:
        """Readable when `hear` has news; None while the broker cannot be heard: then it is asked again after a while."""

    def hear(self) -> Sequence[str]:
        """What has become of the devices since the last call: "paused" (cells have them), "aside" (others have them until
        `go_on`), "resumed" (they are back), "lost" (they are, and what the command had on them is not).
        """

    @property
    def people(self) -> int | None:
        """For how many people the devices were taken until now; None: nobody says."""

    def set_aside(self) -> bool:
        """Others are to have them: `hear` says "aside" once the command is paused. False: its processes have to be stopped."""

    def go_on(self) -> bool:
        """After `set_aside`: `hear` says "resumed" once they are the command's own again. False: not now, ask again."""

    def give_back(self) -> None:
        """Nothing of the command uses them any more."""

    def take_again(self) -> bool:
        """Wait until they are the command's own again; False when somebody wants something else. Raises `CarrelError`."""
