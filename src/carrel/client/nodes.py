"""Nodes that take no jobs, and nodes that are kept for some people."""

from __future__ import annotations

from urllib.parse import quote

from carrel.client.nouns import NounCalls
from carrel.core.domain.nouns import DRAINS, RESERVATIONS
from carrel.core.domain.reservation import Reservation
from carrel.wire import v1


class NodeCalls(NounCalls):
    """The part of a `carrel.Client` that is about nodes."""

    def drain(self, node: str, reason: str) -> bool:
        """Start nothing new on a node; what runs there goes on. Returns whether it was otherwise before (administrators)."""
        request = v1.asked_of(DRAINS).model_validate({"reason": reason})
        return self._http.post(v1.Changed, f"/nodes/{quote(node, safe='')}/drain", request).changed

    def undrain(self, node: str) -> bool:
        """Let a node take jobs again; returns whether it was drained (administrators)."""
        return self._http.post(v1.Changed, f"/nodes/{quote(node, safe='')}/undrain").changed

    def reservations(self) -> list[Reservation]:
        """Nodes that are kept for some people or for nobody, now and later."""
        return self.all_of(RESERVATIONS)

    def reserve(self, asked: Reservation) -> tuple[bool, Reservation]:
        """Keep nodes for some people, or for nobody, between two moments; one of that name is replaced (administrators).

        Returns whether there was none like it, and what is kept.
        """
        return self.put(RESERVATIONS, asked)

    def release(self, name: str) -> None:
        """End a reservation, or take back one that is to come (administrators)."""
        self.remove(RESERVATIONS, name)
