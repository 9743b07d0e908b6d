"""Nodes on which nothing new starts, because an administrator said so. It outlives the server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from carrel.core.domain.node import Drain, Node


class DrainStore(Protocol):
    """Which nodes are drained."""

    def put(self, drain: Drain) -> None:
        """Drain a node; one that is drained already has another reason from now on."""
        ...

    def remove(self, node: str) -> bool:
        """The node takes jobs again; returns whether it was drained."""
        ...

    def all(self) -> Sequence[Drain]:
        """All drained nodes by name."""
        ...


class Drains:
    """What the store knows, in memory. Thread-safe."""

    def __init__(self, store: DrainStore) -> None:
        self._store = store
        self._known = {drain.node: drain for drain in store.all()}
        self._lock = threading.Lock()
        #: The nodes as they came in last, and as they went out: the same nodes give the very same answer.
        self._last: tuple[Sequence[Node], tuple[Node, ...]] = ((), ())

    def drain(self, drain: Drain) -> bool:
        """Nothing new starts on the node from now on; returns whether that, or the reason, was otherwise before."""
        with self._lock:
            before = self._known.get(drain.node)
            if before is not None and before.reason == drain.reason:
                return False
            self._store.put(drain)
            self._known[drain.node] = drain
            self._last = ((), ())
        return True

    def undrain(self, node: str) -> bool:
        """The node takes jobs again; returns whether it was drained."""
        with self._lock:
            removed = self._store.remove(node)
            self._known.pop(node, None)
            self._last = ((), ())
        return removed

    def apply(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes, with the reason at those that are drained. What the engine itself says of a node comes first."""
        if not self._known:
            return nodes
        with self._lock:
            if self._last[0] is not nodes:
                self._last = (nodes, tuple(self._said(node) for node in nodes))
            return self._last[1]

    def _said(self, node: Node) -> Node:
        drain = self._known.get(node.name)
        return node if drain is None or node.drained is not None else replace(node, drained=drain.reason)
