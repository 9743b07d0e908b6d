"""The audit log."""

from __future__ import annotations

from typing import Any

from carrel.wire.v1.base import Response


class AuditPage(Response):
    """Lines of the audit log, oldest first."""

    #: As they were written, number and digests with them.
    lines: list[dict[str, Any]]
    #: What to ask with as `after` for those that follow; None where there are no more.
    next: int | None = None


class AuditCheck(Response):
    """Whether the lines follow one another as they were written."""

    lines: int
    #: Numbers of the oldest that is kept and of the newest; 0 for none.
    first: int
    last: int
    #: Digest of the newest: who keeps it elsewhere sees whether anything before it was changed.
    digest: str
    #: What does not fit; "" for nothing.
    trouble: str
