"""Nodes that take no jobs, nodes that are kept for some people, and the lab's disk."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from carrel.client.nouns import NounCalls
from carrel.wire import v1

#: Seconds: a large disk is looked through file by file.
_PATIENCE = 3600.0


class NodeCalls(NounCalls):
    """The part of a `carrel.Client` that is about nodes and the lab's disk."""

    def drain(self, node: str, reason: str) -> bool:
        """Start nothing new on a node; what runs there goes on. Returns whether it was otherwise before (administrators)."""
        request = v1.asked_of(v1.DRAINS).model_validate({"reason": reason})
        return self._http.post(v1.Changed, f"/nodes/{quote(node, safe='')}/drain", request).changed

    def undrain(self, node: str) -> bool:
        """Let a node take jobs again; returns whether it was drained (administrators)."""
        return self._http.post(v1.Changed, f"/nodes/{quote(node, safe='')}/undrain").changed

    def reservations(self) -> list[v1.Reservation]:
        """Nodes that are kept for some people or for nobody, now and later."""
        return self.all_of(v1.RESERVATIONS)

    def reserve(self, asked: v1.Reservation) -> tuple[bool, v1.Reservation]:
        """Keep nodes for some people, or for nobody, between two moments; one of that name is replaced (administrators).

        Returns whether there was none like it, and what is kept.
        """
        return self.put(v1.RESERVATIONS, asked)

    def release(self, name: str) -> None:
        """End a reservation, or take back one that is to come (administrators)."""
        self.remove(v1.RESERVATIONS, name)

    def storage(self) -> v1.StorageReport:
        """How much of the lab's disk is one's own, and what one may have; administrators see everybody's."""
        return self._http.get(v1.StorageReport, "/storage")

    def collect(self, kinds: Sequence[str] = (), *, dry_run: bool = False) -> v1.Collection:
        """Remove what the lab's rules do not keep of these kinds (default: all); `dry_run`: only say what (administrators)."""
        request = v1.CollectRequest.model_validate({"kinds": list(kinds), "dry_run": dry_run})
        return self._http.post(v1.Collection, "/storage/collect", request, timeout=_PATIENCE)

    def remove_outputs(self, job_id: int) -> v1.OutputsRemoved:
        """Give up what a job that is over has stored; its record keeps names, sizes and digests."""
        return self._http.delete(v1.OutputsRemoved, f"/jobs/{job_id}/outputs")
