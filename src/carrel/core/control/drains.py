"""Nodes on which nothing new starts, because an administrator said so. It outlives the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from carrel.core.control.keeper import RecordStore
from carrel.core.domain.node import Drain, Node


@dataclass(slots=True)
class Drains:
    """The nodes of the lab, with the drains that are kept. Thread-safe."""

    records: RecordStore[Drain]
    #: The nodes and drains as they were last, and the answer: what is the same gives the very same answer.
    _last: tuple[Sequence[Node], Sequence[Drain], tuple[Node, ...]] = field(default=((), (), ()), init=False)

    def apply(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes, with the reason at those that are drained. What the engine itself says of a node comes first."""
        drains = self.records.all()
        if not drains:
            return nodes
        last = self._last
        if last[0] is not nodes or last[1] is not drains:
            said = {drain.node: drain.reason for drain in drains}
            told = tuple(replace(node, drained=said.get(node.name)) if node.drained is None else node for node in nodes)
            last = self._last = (nodes, drains, told)
        return last[2]
