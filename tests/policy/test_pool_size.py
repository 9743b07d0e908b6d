"""How many workers a pool has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.policy.pool_size import may_leave, workers_missing

pytestmark = pytest.mark.quick
COUNT = st.integers(0, 50)


@given(waiting=COUNT, running=COUNT, workers=COUNT, least=COUNT, more=COUNT)
def test_there_is_a_worker_for_each_call_within_the_limits(
    waiting: int, running: int, workers: int, least: int, more: int
) -> None:
    most = least + more
    missing = workers_missing(waiting=waiting, running=running, workers=workers, least=least, most=most)
    after = workers + missing
    assert missing == 0 or after <= most
    assert after >= least
    assert after >= min(most, waiting + running)
    assert missing == 0 or after == max(least, min(most, waiting + running))


@pytest.mark.parametrize(
    ("idle", "workers", "closed", "leaves"),
    [(9.9, 3, False, False), (10.0, 3, False, True), (100.0, 2, False, False), (0.0, 1, True, True)],
)
def test_a_worker_leaves_when_it_is_idle_and_not_among_the_last(idle: float, workers: int, closed: bool, leaves: bool) -> None:
    assert may_leave(idle=idle, idle_time=10.0, workers=workers, least=2, closed=closed) is leaves
