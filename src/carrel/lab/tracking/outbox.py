"""What the shipper needs of the outbox. The store has the durable one; the one in memory is for tests and trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

#: Kinds of items and what is in their payloads, beside "owner" (a subject), which all of them have.
KINDS: dict[str, str] = {
    "create_run": "experiment (name or None), run_name, start_time (Unix ms), tags, params, user, adopt (run id or None), "
    "parent (of a trial or a variant: naming (tags), run_name, start_time and tags of the run of its sweep or search)",
    "update": "any of metrics ([{key, value, timestamp (Unix ms), step}]), params, tags",
    "artifact": "artifact_path, and path (of a file of the lab's) or text",
    "record": "artifact_path; the record is made when it is sent",
    "end_run": "status (FINISHED, FAILED or KILLED), end_time (Unix ms)",
    "parent": "parent (as in create_run), experiment, tags, status (also RUNNING), end_time (or None)",
}


class OutboxItem(Protocol):
    """One thing to tell MLflow."""

    @property
    def id(self) -> int:
        """Its place in the order."""
        ...

    @property
    def job_id(self) -> int:
        """The job that it is about."""
        ...

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        ...

    @property
    def payload(self) -> Mapping[str, Any]:
        """JSON-ready."""
        ...


class Outbox(Protocol):
    """Items in the order in which they were written, until MLflow has them or has refused them."""

    def pending(self, limit: int) -> Sequence[OutboxItem]:
        """The oldest items that are neither done nor failed."""
        ...

    def last(self) -> int:
        """The number of the newest item that still has to be sent; 0 where there is none."""
        ...

    def done(self, ids: Sequence[int]) -> None:
        """MLflow has these."""
        ...

    def failed(self, item_id: int, message: str) -> None:
        """MLflow refused this for good, in its own words."""
        ...

    def run_of(self, job_id: int) -> tuple[str, str] | None:
        """Run id and experiment id of the job, or None while there is no run."""
        ...

    def set_run(self, job_id: int, run_id: str, experiment_id: str) -> None:
        """The job's run exists."""
        ...
