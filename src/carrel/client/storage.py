"""The lab's disk, as one user sees it."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.client.transport import Transport
from carrel.core.domain.retention import Collection, StorageReport
from carrel.wire import v1

#: Seconds: a large disk is looked through file by file.
_PATIENCE = 3600.0


class StorageCalls:
    """The part of a `carrel.Client` that is about the lab's disk."""

    _http: Transport

    def storage(self) -> StorageReport:
        """How much of the lab's disk is one's own, and what one may have; administrators see everybody's."""
        return v1.value_of(StorageReport, self._http.get(v1.shown_of(StorageReport), "/storage"))

    def collect(self, kinds: Sequence[str] = (), *, dry_run: bool = False) -> Collection:
        """Remove what the lab's rules do not keep of these kinds (default: all); `dry_run`: only say what (administrators)."""
        request = v1.CollectRequest.model_validate({"kinds": list(kinds), "dry_run": dry_run})
        return v1.value_of(Collection, self._http.post(v1.shown_of(Collection), "/storage/collect", request, timeout=_PATIENCE))

    def remove_outputs(self, job_id: int) -> v1.OutputsRemoved:
        """Give up what a job that is over has stored; its record keeps names, sizes and digests."""
        return self._http.delete(v1.OutputsRemoved, f"/jobs/{job_id}/outputs")
