"""The cells that a lab has recorded, for those who export or simulate them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrel.client import Client
    from carrel.domain.cells import RecordedCell
    from carrel.wire import v1

_SEE_ALL = ("operator", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the lab told."""

    #: As they came.
    views: Sequence[v1.CellView]
    #: True where they are everybody's.
    everybody: bool
    #: How many the lab did not hear of.
    missing: int

    def recorded(self) -> Sequence[tuple[str, RecordedCell]]:
        """The cells with their owners."""
        return [(view.owner, _cell(view)) for view in self.views]


def read_cells_of(client: Client, *, since: float | None = None) -> Found:
    """Everybody's for operators and administrators, one's own for others."""
    everybody = client.lab().caller.role in _SEE_ALL
    views: list[v1.CellView] = []
    missing = 0
    for page in client.cells("all" if everybody else "me", since=since):
        views += page.cells
        missing = page.missing or 0
    return Found(views=views, everybody=everybody, missing=missing)


def _cell(view: v1.CellView) -> RecordedCell:
    from carrel.domain.cells import RecordedCell

    return RecordedCell(
        broker=view.broker,
        number=view.number,
        job_id=view.session,
        attempt=view.attempt,
        process=view.process,
        asked_at=view.asked_at,
        granted_at=view.granted_at,
        returned_at=view.returned_at,
        seen_at=view.seen_at,
        computed=view.computed,
        gpus=view.gpus,
        gpu_type=view.gpu_type,
        gpu_memory=view.gpu_memory,
        outcome=view.outcome,
    )
