"""Parts of a lab: which nodes go together, and whose work runs there."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.domain.nodelist import in_nodelist


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Some nodes of a lab, and the classes of service that run on them. A lab without partitions is one."""

    name: str
    #: Names of nodes, as `carrel.domain.nodelist` reads them.
    nodes: tuple[str, ...] = ("*",)
    #: Classes of service that it takes; empty: all of them.
    qos: tuple[str, ...] = ()

    def takes(self, qos: str) -> bool:
        """True when work of this class of service runs here."""
        return not self.qos or qos in self.qos

    def has(self, node: str) -> bool:
        """True when the node belongs to it."""
        return in_nodelist(node, self.nodes)
