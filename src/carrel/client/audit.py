"""The audit log, as operators and administrators see it."""

from __future__ import annotations

from carrel.client.transport import Transport
from carrel.wire import v1


class AuditCalls:
    """The part of a `carrel.Client` that is about the audit log."""

    _http: Transport

    def audit(self, **wanted: str | int | bool | None) -> v1.AuditPage:
        """Lines of the audit log; `wanted` as in the API: user, action, result, resource, since, until, after, limit, newest."""
        query = {name: value for name, value in wanted.items() if value is not None}
        return self._http.get(v1.AuditPage, "/audit", params=query)
