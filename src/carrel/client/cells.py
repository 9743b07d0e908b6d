"""When cells of sessions had GPUs, as one user sees it."""

from __future__ import annotations

from collections.abc import Iterator

from carrel.client.transport import Transport
from carrel.core.domain.cells import CellPage
from carrel.wire import v1

_PAGE = 10_000


class CellCalls:
    """The part of a `carrel.Client` that is about recorded cells."""

    _http: Transport

    def cells(self, owner: str = "me", *, since: float | None = None) -> Iterator[CellPage]:
        """Page by page, in the order in which the lab heard of them; asked for at `since` (Unix seconds) or later.

        `owner` is "me" or (operators, administrators) "all".
        """
        after: int | None = 0
        while after is not None:
            query = {"owner": owner, "since": since, "after": after, "limit": _PAGE}
            found = self._http.get(v1.shown_of(CellPage), "/cells", params={k: v for k, v in query.items() if v is not None})
            page = v1.value_of(CellPage, found)
            yield page
            after = page.next
