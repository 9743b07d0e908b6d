"""Nodes that take no jobs, and nodes that are kept for some people."""

from __future__ import annotations

from urllib.parse import quote

from carrel.client.transport import Transport
from carrel.core.domain.nouns import DRAINS
from carrel.wire import v1


class NodeCalls:
    """The part of a `carrel.Client` that is about nodes."""

    _http: Transport

    def drain(self, node: str, reason: str) -> bool:
        """Start nothing new on a node; what runs there goes on. Returns whether it was otherwise before (administrators)."""
        request = v1.asked_of(DRAINS).model_validate({"reason": reason})
        return self._http.post(v1.Changed, f"/nodes/{quote(node, safe='')}/drain", request).changed

    def undrain(self, node: str) -> bool:
        """Let a node take jobs again; returns whether it was drained (administrators)."""
        return self._http.post(v1.Changed, f"/nodes/{quote(node, safe='')}/undrain").changed

    def reservations(self) -> list[v1.ReservationView]:
        """Nodes that are kept for some people or for nobody, now and later."""
        return self._http.get(v1.ReservationList, "/reservations").reservations

    def reserve(self, name: str, request: v1.ReservationRequest) -> v1.ReservationChange:
        """Keep nodes for some people, or for nobody, between two moments; one of that name is replaced (administrators)."""
        return self._http.put(v1.ReservationChange, f"/reservations/{quote(name, safe='')}", request)

    def release(self, name: str) -> None:
        """End a reservation, or take back one that is to come (administrators)."""
        self._http.call("DELETE", f"/reservations/{quote(name, safe='')}")
