"""Nodes and GPUs on which nothing new starts: an administrator said so, or a GPU has a fault. It outlives the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        """The nodes, with the reason at those, and at GPUs, that are drained. What the engine itself says comes first."""
        drains = self.records.all()
        if not drains:
            return nodes
        last = self._last
        if last[0] is not nodes or last[1] is not drains:
            said = self.reasons()
            last = self._last = (nodes, drains, tuple(_told(node, said) for node in nodes))
        return last[2]

    def reasons(self) -> Mapping[str, str]:
        """Why nothing new starts, by the name of the node or the UUID of the GPU."""
        return {drain.node: drain.reason for drain in self.records.all() if not drain.returned}

    def fault(self, devices: Sequence[str], since: float) -> str:
        """The fault for which one of these GPUs has been drained since then by the lab itself; "": there is none."""
        found = (one for one in self.records.all() if one.node in devices and not one.by and one.since >= since)
        return next((one.reason for one in found), "")

    def found_fault(self, device: str, reason: str, now: float) -> bool:
        """A GPU has a fault: drain it. Returns False where it is drained already, or was returned with this very fault."""
        known = self._known(device)
        if known is not None and (not known.returned or known.reason == reason):
            return False
        self.records.put(Drain(node=device, reason=reason, since=now))
        return True

    def found_well(self, device: str) -> None:
        """A GPU has no fault now: one that was returned is drained again if the fault comes back."""
        known = self._known(device)
        if known is not None and known.returned:
            self.records.remove(device)

    def _known(self, device: str) -> Drain | None:
        return next((one for one in self.records.all() if one.node == device), None)


def _told(node: Node, said: Mapping[str, str]) -> Node:
    if not said.keys().isdisjoint(device.uuid for device in node.devices):
        node = replace(node, devices=tuple(replace(one, drained=said.get(one.uuid, one.drained)) for one in node.devices))
    return replace(node, drained=said.get(node.name)) if node.drained is None else node
