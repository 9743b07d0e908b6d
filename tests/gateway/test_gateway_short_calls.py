"""Several short calls in one answer, with workers whose every request is the test's own."""

from __future__ import annotations

from typing import Any

import pytest
from test_gateway_pools import V1, Opens, Pool, Worker, dies, encode, frames, opens, pool

from carrel.core.domain.call import INLINE

__all__ = ["opens", "pool"]


def hand(worker: Worker, *ended: int, holding: tuple[int, ...] = (), take: bool = True, seconds: float = 0.001) -> list[int]:
    """Tell that these calls have ended, and that those are held; return the calls of the answer."""
    parts = [encode({"type": "ended", "call": one, "state": "COMPLETED", "seconds": seconds}, b"r") for one in ended]
    query: dict[str, Any] = {"wait": 0, "take": str(take).lower()}
    content = encode({"type": "holding", "calls": list(holding)}) + b"".join(parts)
    answer = worker.http.post(f"{V1}/pools/{worker.pool}/work", params=query, content=content).raise_for_status()
    return [header["call"] for header, _ in frames(answer.content) if header["type"] == "call"]


def short_calls(pool: Pool, number: int, workers: int = 1) -> tuple[Worker, list[int]]:
    """A worker with a call of a function that is known to be short, and the calls behind that."""
    calls = pool.calls(*[b"x"] * (number + 1))
    worker, *_ = pool.workers(workers)
    assert hand(worker) == calls[:1], "nothing is known of its function"
    return worker, calls


@pytest.mark.gate
def test_a_worker_gets_several_calls_that_are_short_and_gives_back_what_has_not_begun(pool: Pool) -> None:
    worker, calls = short_calls(pool, 6)
    assert hand(worker, calls[0]) == calls[1:]
    assert {pool.state(one) for one in calls[1:]} == {"RUNNING"}
    assert hand(worker, calls[1], holding=(calls[2],), take=False) == []
    assert [pool.state(one) for one in calls[2:5]] == ["RUNNING", "PENDING", "PENDING"]
    assert hand(worker, calls[2]) == calls[3:], "in their order, before all others"
    assert hand(worker, *calls[3:]) == []
    assert [header["call"] for header, _ in pool.ended()] == calls


def test_calls_that_take_long_or_are_large_are_given_one_by_one(opens: Opens) -> None:
    pool = opens()
    worker, calls = short_calls(pool, 3)
    assert hand(worker, calls[0], seconds=1.0) == calls[1:2]
    assert hand(worker, calls[1], seconds=1.0) == calls[2:3]
    small = opens()
    worker, calls = short_calls(small, 0)
    more = small.calls(b"x", b"x" * (INLINE + 1), b"x")
    assert hand(worker, *calls) == more[:1]
    assert hand(worker, more[0]) == more[1:2]
    assert hand(worker, more[1]) == more[2:]


def test_other_workers_get_their_part_of_what_waits(opens: Opens) -> None:
    worker, calls = short_calls(opens(max_workers=3), 9, workers=3)
    assert hand(worker, calls[0]) == calls[1:4]


def test_calls_at_hand_are_lost_with_their_worker_only_if_it_says_nothing(pool: Pool) -> None:
    worker, calls = short_calls(pool, 4)
    hand(worker, calls[0])
    hand(worker, calls[1], holding=(calls[2],), take=False)  # the last words of one whose call has crashed
    dies(pool.rig, worker.job)
    pool.rig.wait_for(lambda: [pool.state(one) for one in calls[1:]] == ["COMPLETED", "FAILED", "PENDING", "PENDING"])
    (another,) = pool.workers(1)
    assert hand(another) == calls[3:]
    dies(pool.rig, another.job)
    pool.rig.wait_for(lambda: [pool.state(one) for one in calls[3:]] == ["FAILED", "FAILED"])  # each may have begun


def test_many_calls_are_cancelled_in_one_request(pool: Pool) -> None:
    worker, calls = short_calls(pool, 4)
    hand(worker, calls[0])
    waiting = pool.calls(b"x", b"x")
    answer = pool.http.post(f"{V1}/pools/{pool.id}/calls/cancel", json={"calls": [*calls, *waiting]})
    assert answer.raise_for_status().json()["calls"] == waiting
    assert hand(worker, calls[1]) == [], "what it gives back is not wanted any more"
    assert [pool.state(one) for one in calls] == ["COMPLETED", "COMPLETED", "CANCELLED", "CANCELLED", "CANCELLED"]
