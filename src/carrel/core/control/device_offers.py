"""Which devices the placer may give away: not what others hold, and what idle GPU state keeps only if that can leave."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.queue import Queue
from carrel.core.domain.node import Node
from carrel.core.domain.placement import Start
from carrel.core.domain.ports import Engine
from carrel.core.policy.clearing import Offer, offer
from carrel.core.policy.placer import Placer


class DeviceOffers:
    """Offers devices to the placer."""

    def __init__(self, engine: Engine, settings: LoopSettings, queue: Queue, placer: Placer) -> None:
        self._engine, self._settings, self._queue, self._placer = engine, settings, queue, placer
        #: Devices that processes hold of which the lab knows nothing.
        self.withheld: frozenset[str] = frozenset()
        #: What idle sessions' GPU state keeps from jobs, or has to move for them.
        self.offer = Offer()

    def nodes(self) -> tuple[Node, ...]:
        """The nodes, less what is drained."""
        return self._settings.drained(self._engine.nodes())

    def look(self) -> None:
        """See again what others hold."""
        self.withheld = self._engine.withheld()

    @property
    def unavailable(self) -> frozenset[str]:
        """Devices that no job gets now."""
        return self.withheld | self.offer.blocked.keys()

    def make(self, first: Collection[str] = (), starts: Sequence[Start] = ()) -> None:
        """Tell the placer what it may give away, those devices `first` of which not all can be cleared."""
        nodes, found = self.nodes(), self._engine.gpu_state()
        if found.states:
            taken = self.taken() | {uuid for start in starts for uuid in start.devices}
            working = [device for node in nodes for device in node.devices if device.drained is None]
            devices = [device for device in working if device.uuid not in self.withheld]
            self.offer = offer(found, devices, taken, first=first)
        else:
            self.offer = Offer()
        self._placer.nodes(nodes, self.unavailable, self.offer.moves)

    def place(self, now: float) -> Sequence[Start]:
        """Place, and while host memory cannot take all idle state, again with other devices offered: each is, once."""
        starts = list(self._placer.place(now))
        offered = set(self.offer.moves)
        while untried := set(self.offer.instead) - offered:
            self.make(untried, starts)
            if untried.isdisjoint(self.offer.moves):
                break
            offered |= self.offer.moves.keys()
            starts += self._placer.place(now)
        return starts

    def taken(self) -> set[str]:
        """Devices that jobs have."""
        return {uuid for held in self._queue.holding.values() for share in held.shares for uuid in share.devices}
