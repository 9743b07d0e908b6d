"""Where jobs go on equal nodes: first fit by the index of the node, as the simulators of the field do it."""

from __future__ import annotations

from carrel.simulate.trace import Cluster

#: What a job holds: index of the node, GPUs on it.
Placement = tuple[tuple[int, int], ...]


class Nodes:
    """How many GPUs are free on each node.

    A job that fits on one node takes the first node with room for it. A larger one takes whole free nodes, the first ones, and
    the first other node with room for the rest. Whenever a number of GPUs cannot be had, no larger number can.
    """

    __slots__ = ("_first", "_free", "_per_node", "free")

    def __init__(self, cluster: Cluster) -> None:
        self._per_node = cluster.gpus_per_node
        self._free = [cluster.gpus_per_node] * cluster.nodes
        # No node before this one has so many GPUs free. A bound only, raised by searches and lowered by what is given back,
        # so that filling all nodes costs one walk along them for each size of job and not one for each job.
        self._first = [0] * (cluster.gpus_per_node + 1)
        #: Free GPUs of all nodes.
        self.free = cluster.gpus

    def clear(self) -> None:
        """Take everything back."""
        self._free[:] = [self._per_node] * len(self._free)
        self._first[:] = [0] * len(self._first)
        self.free = self._per_node * len(self._free)

    def take(self, gpus: int) -> Placement | None:
        """Give `gpus` (one or more) away; None, and nothing changes, when they cannot be had."""
        if gpus > self._per_node:
            return self._take_many(gpus)
        free = self._free
        node, end = self._first[gpus], len(free)
        while node < end and free[node] < gpus:
            node += 1
        self._first[gpus] = node
        if node == end:
            return None
        free[node] -= gpus
        self.free -= gpus
        return ((node, gpus),)

    def give_back(self, placement: Placement) -> None:
        """Take back what `take` gave away."""
        for node, gpus in placement:
            self._free[node] += gpus
            self.free += gpus
            for size in range(1, self._free[node] + 1):
                self._first[size] = min(self._first[size], node)

    def _take_many(self, gpus: int) -> Placement | None:
        """Give away whole nodes, and one node for the rest."""
        if gpus > self.free:
            return None
        whole, rest = divmod(gpus, self._per_node)
        if self._free.count(self._per_node) < whole:
            return None
        nodes = [node for node, free in enumerate(self._free) if free == self._per_node][:whole]
        placement = [(node, self._per_node) for node in nodes]
        if rest:
            other = next((node for node, free in enumerate(self._free) if free >= rest and node not in nodes), None)
            if other is None:
                return None
            placement.append((other, rest))
        for node, taken in placement:
            self._free[node] -= taken
        self.free -= gpus
        return tuple(placement)
