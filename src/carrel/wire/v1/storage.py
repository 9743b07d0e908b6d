"""What goes from the lab's disk. What is there, and what went, is in `carrel.core.domain.retention`."""

from __future__ import annotations

from pydantic import Field

from carrel.core.domain.retention import Kind
from carrel.wire.v1.base import Request, Response


class CollectRequest(Request):
    """Remove what the lab's rules do not keep."""

    #: Only these; all where none is named.
    kinds: list[Kind] = Field(default_factory=list, max_length=16)
    #: True: say what would go, remove nothing.
    dry_run: bool = False


class OutputsRemoved(Response):
    """Outputs of a job that are not stored any more."""

    count: int
    size: int
