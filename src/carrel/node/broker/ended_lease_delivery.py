"""Hands leases that are over to the lab, many at a time, and keeps each until the lab has written it down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from carrel.core.domain.node import Device
from carrel.core.transport.channel import Channel
from carrel.core.transport.reactor import Reactor, Timer
from carrel.node.broker.core.ended_leases import EndedLeases
from carrel.node.leases.protocol import encode

#: Seconds from the end of a lease to the message about it: those that end meanwhile come with it.
_GATHER_SECONDS = 1.0
#: Seconds until a lab that could not write them down hears of them again.
_AGAIN_SECONDS = 10.0
#: Leases in one message, which has a longest length.
_MOST = 500


class EndedLeaseDelivery:
    """Speaks to one lab: the one that asked last. Called in the loop's thread."""

    def __init__(self, loop: Reactor, past: EndedLeases, devices: Mapping[str, Device], took: Callable[[int], None]) -> None:
        """`took` is called with the number up to which the lab has them."""
        self._loop = loop
        self._past = past
        self._devices = devices
        self._took = took
        self._lab: Channel[bytes] | None = None
        #: A message is not answered yet.
        self._under_way = False
        self._timer: Timer | None = None

    def begin(self, lab: Channel[bytes]) -> None:
        """A lab asks for them."""
        self._lab, self._under_way = lab, False
        self._send()

    def end(self, connection: Channel[bytes]) -> None:
        """A connection is over: what it was told and has not answered is told to the next lab."""
        if connection is self._lab:
            self._lab = None

    def look(self) -> None:
        """Leases may be over: the lab hears of them soon."""
        if self._lab is not None and self._past.rows:
            self._later(_GATHER_SECONDS)

    def answered(self, connection: Channel[bytes], until: int) -> None:
        """A lab has written them down up to this number; 0: it could not."""
        if connection is not self._lab:
            return
        self._under_way = False
        if until > 0:
            self._took(until)
            self.look()
        elif self._past.rows:
            self._later(_AGAIN_SECONDS)

    def _later(self, seconds: float) -> None:
        if self._timer is None and not self._under_way:
            self._timer = self._loop.later(seconds, self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lab is not None and self._past.rows and not self._under_way:
            self._under_way = True
            self._lab.send(encode("past", leases=[self._told(row) for row in islice(self._past.rows, _MOST)]))

    def _told(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What the lab is told of a lease: which cell it was is nobody's business."""
        known = [self._devices[uuid] for uuid in row["devices"] if uuid in self._devices]
        types = {device.type for device in known}
        return {
            "n": row["n"],
            "job": row["job"],
            "attempt": row["attempt"],
            "process": row["process"],
            "asked": row["at"],
            "waited": row["waited"],
            "computed": row["held"],
            "over": row.get("over"),
            "seen": row.get("over", row.get("seen")),
            "gpus": len(row["devices"]),
            "devices": list(row["devices"]),
            "type": types.pop() if len(types) == 1 else "",
            "memory": min((device.memory for device in known), default=0),
            "outcome": row["outcome"],
            "busy": row.get("busy"),
        }
