"""When cells of sessions had GPUs: what the node's broker tells is written down, and read by those who may."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from carrel.core.domain.cells import CellPage, RecordedCell
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed

_log = logging.getLogger(__name__)


class CellStore(Protocol):
    """What is kept of cells. `carrel.lab.store.cells.CellTable` is one, and has the promises."""

    def add(self, found: Sequence[RecordedCell]) -> None: ...
    def list(
        self, *, owner: str | None = None, since: float | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[RecordedCell]: ...
    def missing(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Thread-safe."""

    store: CellStore

    def keep(self, found: Sequence[RecordedCell]) -> bool:
        """Write down what a broker tells; False when that cannot be done now, and the broker has to tell it again."""
        try:
            self.store.add(found)
        except CarrelError as error:
            _log.warning("When cells had GPUs cannot be written down now: %s", error)
            return False
        return True

    def read(self, caller: Caller, *, everybody: bool, since: float | None, after: int, limit: int) -> CellPage:
        """The caller's own cells, or everybody's."""
        me = caller.user.subject
        allowed(caller, Action.READ_CELLS, Resource(owner=None if everybody else me)).check()
        found = self.store.list(owner=None if everybody else me, since=since, after=after, limit=limit)
        last = len(found) < limit
        # All are looked at for what is missing: once is enough.
        missing = self.store.missing() if everybody and last else None
        return CellPage(cells=tuple(found), missing=missing, next=None if last else found[-1].id)
