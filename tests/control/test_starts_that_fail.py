"""A database that fails between a start that is refused and the next one: nobody is left behind half started."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scheduled import Scheduled, job, rules, settings

from carrel.core.control.ports import AttemptChange
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.job import Job
from carrel.core.domain.launch import Launch
from carrel.simulate.lab.machines import VirtualMachines, nodes_of
from carrel.simulate.lab.memory import MemoryStore
from carrel.simulate.trace import Cluster


class FailingStore(MemoryStore):
    """Refuses changes while it is `away`."""

    away = False

    def change(self, changes: Sequence[AttemptChange], *, now: float) -> Sequence[Job]:
        if self.away:
            raise Unavailable("The database does not answer.")
        return super().change(changes, now=now)


class PickyMachines(VirtualMachines):
    """Refuses one job, and remembers whom it has started."""

    refuses: int | None = None
    started: tuple[int, ...] = ()

    def start(self, launch: Launch, *, token: str) -> None:
        if launch.job_id == self.refuses:
            raise Unavailable("Its GPU is taken.")
        self.started += (launch.job_id,)
        super().start(launch, token=token)


def test_who_was_to_start_after_a_refused_one_starts_when_the_database_is_back() -> None:
    store = FailingStore()
    engine = PickyMachines(nodes_of(Cluster(nodes=1, gpus_per_node=4)), dict.fromkeys((1, 2, 3), 100.0))
    lab = Scheduled(engine, settings(rules(), tells=False), store)
    engine.refuses, store.away = 1, True
    with pytest.raises(Unavailable, match="does not answer"):
        lab.cycle(10.0, *(job(number, submitted_at=float(number)) for number in (1, 2, 3)))
    assert engine.started == ()
    again = lab.scheduler.next_at()
    assert again is not None, "it is tried again without news"
    store.away = False
    assert lab.runs(again) == {2, 3}
    assert engine.started == (2, 3)
    engine.refuses = None
    lab.cycle(lab.scheduler.next_at())
    assert engine.started == (2, 3, 1)
