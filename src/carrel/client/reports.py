"""Reports of use, when cells had GPUs, and the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from carrel.client.transport import Transport
from carrel.wire import v1

#: Seconds: of a year of a large lab much is read.
_PATIENCE = 300.0
#: Jobs, and cells, that are asked for at a time.
_PAGE, _CELLS = 2_000, 10_000


class ReportCalls:
    """The part of a `carrel.Client` that is about reports, cells and the audit log. Moments without a time zone are in UTC."""

    _http: Transport

    def report_use(
        self,
        *,
        begin: datetime | str | None = None,
        end: datetime | str | None = None,
        by: str = "user",
        anonymous: bool = False,
    ) -> v1.UseReportView:
        """Who used GPUs for how long, and what came of it.

        `by` is "user", "account", "project", "qos", "gpu_type", "node", "week" or "kind". One's own; account managers see
        their accounts', administrators everybody's. By default the last four weeks. `anonymous`: in rows of at least five people.
        """
        query = _asked(begin, end) | {"by": by} | ({"anonymous": True} if anonymous else {})
        return self._http.get(v1.UseReportView, "/report/use", params=query, timeout=_PATIENCE)

    def report_starts(self, *, begin: datetime | str | None = None, end: datetime | str | None = None) -> v1.StartReportView:
        """How long jobs took from submission to their first output, by class of service."""
        return self._http.get(v1.StartReportView, "/report/starts", params=_asked(begin, end), timeout=_PATIENCE)

    def report_sessions(
        self, *, begin: datetime | str | None = None, end: datetime | str | None = None, by: str = "user"
    ) -> v1.SessionReportView:
        """Where the time of sessions went that borrow GPUs, by "user", "account" or "qos"."""
        return self._http.get(v1.SessionReportView, "/report/sessions", params=_asked(begin, end) | {"by": by}, timeout=_PATIENCE)

    def report_jobs(
        self, *, begin: datetime | str | None = None, end: datetime | str | None = None
    ) -> Iterator[v1.ExportedAttemptPage]:
        """Attempts with their jobs, page by page in the order of jobs: those that were there in the range.

        One's own; account managers see their accounts', administrators everybody's. By default the last four weeks.
        """
        asked, after = _asked(begin, end), 0
        while True:
            query = {**asked, "after": after, "limit": _PAGE}
            page = self._http.get(v1.ExportedAttemptPage, "/report/jobs", params=query, timeout=_PATIENCE)
            yield page
            if page.next is None:
                return
            # What the first page took for now is when the others end, too.
            asked, after = _asked(page.begin.isoformat(), page.end.isoformat()), page.next

    def cells(self, owner: str = "me", *, since: float | None = None) -> Iterator[v1.CellPage]:
        """Page by page, in the order in which the lab heard of them; asked for at `since` (Unix seconds) or later.

        `owner` is "me" or (operators, administrators) "all".
        """
        after: int | None = 0
        while after is not None:
            query = {"owner": owner, "since": since, "after": after, "limit": _CELLS}
            page = self._http.get(v1.CellPage, "/cells", params={k: v for k, v in query.items() if v is not None})
            yield page
            after = page.next

    def audit(self, **wanted: str | int | bool | None) -> v1.AuditPage:
        """Lines of the audit log; `wanted` as in the API: user, action, result, resource, since, until, after, limit, newest."""
        query = {name: value for name, value in wanted.items() if value is not None}
        return self._http.get(v1.AuditPage, "/audit", params=query)


def _asked(begin: datetime | str | None, end: datetime | str | None) -> dict[str, str]:
    return {name: str(at) for name, at in (("from", begin), ("to", end)) if at is not None}
