"""What is on the lab's disk, and what goes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from carrel.wire.v1.base import Request, Response

StorageKind = Literal["work", "logs", "code", "outputs", "artifacts", "audit", "cells", "calls"]


class StoredView(Response):
    """What one user has on the lab's disk, in bytes."""

    outputs: int
    logs: int
    code: int
    total: int


class StorageView(Response):
    """How much of the lab's disk is whose."""

    mine: StoredView
    #: Bytes that each user may have; absent where there is no limit.
    quota: int | None = None
    #: Everybody's by subject, for administrators.
    users: dict[str, StoredView] = Field(default_factory=dict)


class CollectRequest(Request):
    """Remove what the lab's rules do not keep."""

    #: Only these; all where none is named.
    kinds: list[StorageKind] = Field(default_factory=list, max_length=16)
    #: True: say what would go, remove nothing.
    dry_run: bool = False


class CollectedView(Response):
    """What went of one kind, or would."""

    kind: StorageKind
    count: int
    size: int
    #: The first few, in words.
    examples: list[str]
    #: Why some of it could not be looked at or removed; absent for nothing.
    trouble: str = ""


class CollectionView(Response):
    """What went, or would."""

    dry_run: bool
    collected: list[CollectedView]
    #: Bytes.
    size: int


class OutputsRemoved(Response):
    """Outputs of a job that are not stored any more."""

    count: int
    size: int
