"""How a request gets its room on devices, or what keeps it from that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from carrel.core.domain.lease import Tenant
from carrel.core.policy.lend_places import Places


class Obstacle(Enum):
    """Why room cannot be made."""

    #: Some of what is on the device has to stay there.
    FIXED = "fixed"
    #: Host memory has no place for what would have to go.
    HOST = "host"
    #: Programs that hold no lease fill the device.
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Plan:
    """How a request gets its room."""

    #: Who gives back first what they only keep in reserve.
    trims: tuple[Tenant, ...] = ()
    #: Whose state has to be moved first, in that order.
    victims: tuple[Tenant, ...] = ()
    #: Whose context has to leave, too; its state has left already.
    contexts: tuple[Tenant, ...] = ()
    #: True when states that are being moved, or caches that are being emptied, already make (part of) the room.
    leaving: bool = False
    obstacle: Obstacle | None = None
    #: What host memory and the disk have left once all of them are there; None: nobody moves.
    places: Places | None = None

    @property
    def later(self) -> bool:
        """True when states have to go on to the disk before there is room in host memory."""
        return self.places is not None and self.places.later

    @property
    def ready(self) -> bool:
        """True when the room is there now."""
        moves = self.trims or self.victims or self.contexts or self.leaving or self.later
        return not moves and self.obstacle is None
