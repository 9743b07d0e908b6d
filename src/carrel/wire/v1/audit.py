"""The audit log."""

from __future__ import annotations

from typing import Any

from carrel.wire.v1.base import Response


class AuditPage(Response):
    """Lines of the audit log, oldest first."""

    #: As they were written, with their numbers (`seq`).
    lines: list[dict[str, Any]]
    #: What to ask with as `after` for those that follow; None where there are no more.
    next: int | None = None
