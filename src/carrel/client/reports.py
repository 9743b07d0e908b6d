"""Reports of use."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from carrel.client.transport import Transport
from carrel.wire import v1

#: Seconds: of a year of a large lab much is read.
_PATIENCE = 300.0
#: Jobs that are asked for at a time.
_PAGE = 2_000


class ReportCalls:
    """The part of a `carrel.Client` that is about reports. Moments without a time zone are in UTC."""

    _http: Transport

    def report_use(
        self, *, begin: datetime | str | None = None, end: datetime | str | None = None, by: str = "user"
    ) -> v1.UseReportView:
        """Who used GPUs for how long, and what came of it, by "user", "account", "qos", "week" or "kind".

        One's own; account managers see their accounts', administrators everybody's. By default the last four weeks.
        """
        return self._http.get(v1.UseReportView, "/report/use", params=_asked(begin, end) | {"by": by}, timeout=_PATIENCE)

    def report_starts(self, *, begin: datetime | str | None = None, end: datetime | str | None = None) -> v1.StartReportView:
        """How long jobs took from submission to their first output, by class of service."""
        return self._http.get(v1.StartReportView, "/report/starts", params=_asked(begin, end), timeout=_PATIENCE)

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


def _asked(begin: datetime | str | None, end: datetime | str | None) -> dict[str, str]:
    return {name: str(at) for name, at in (("from", begin), ("to", end)) if at is not None}
