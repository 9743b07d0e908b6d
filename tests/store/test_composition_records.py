"""Machines from parts as the database keeps them: the living are in memory, the others go after a while."""

from __future__ import annotations

from carrel.core.domain.composition import LIVING, Composition, CompositionState
from carrel.core.domain.fabric import BlockKind, Wish
from carrel.core.domain.nouns import COMPOSITIONS
from carrel.lab.store import Store


def test_the_living_are_known_and_the_others_are_forgotten_after_a_while(store: Store) -> None:
    records = store.of(COMPOSITIONS)
    wishes = (Wish(kind=BlockKind.GPU),)
    states = {CompositionState.RUNNING: 5.0, CompositionState.COMPLETED: 5.0, CompositionState.FAILED: 15.0}
    for state, end in states.items():
        records.put(Composition(wishes=wishes, time=60, owner="ada", state=state, end=end))
    living = records.all(state=LIVING)
    assert [one.state for one in living] == [CompositionState.RUNNING]
    assert records.all(state=LIVING) is living
    assert store.retention.cells_before(10.0) == 1
    store.retention.drop_cells(10.0)
    assert [one.state for one in records.select()] == [CompositionState.RUNNING, CompositionState.FAILED]
