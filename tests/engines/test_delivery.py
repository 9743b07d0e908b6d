"""News are handed over until the receiver takes them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import pytest

from carrel.core.domain.launch import Observation
from carrel.core.transport.reactor import Reactor
from carrel.engines import delivery
from carrel.engines.delivery import Delivery, News, deliver_now


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "AGAIN", 0.01)


class Lab:
    """Takes news, and all but the last time fails after it had a look at them."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.shown: list[list[int]] = []

    def __call__(self, observations: Sequence[Observation]) -> None:
        self.shown.append(sorted(one.offset for one in observations))
        if len(self.shown) <= self.failures:
            raise OSError("the disk is full")


@pytest.mark.gate
def test_what_is_not_taken_is_handed_over_again_with_what_came_meanwhile() -> None:
    offsets = {(1, 1): 10, (2, 1): 20}
    told: dict[tuple[int, int], int] = {}
    reactor, lab = Reactor(), Lab(failures=2)

    def taken(key: tuple[int, int], offset: int) -> None:
        told[key] = offset
        if told == offsets:
            reactor.stop()

    def news(key: tuple[int, int]) -> News | None:
        offset = offsets[key] + len(lab.shown)  # the journal grows
        if told.get(key) is not None:
            return None
        offsets[key] = offset
        return News(Observation(job_id=key[0], attempt=key[1], offset=offset), partial(taken, key, offset))

    subject = Delivery(reactor, news=news, receiver=lab)
    reactor.post(lambda: subject.look({(1, 1)}))
    reactor.post(lambda: subject.look({(2, 1)}))
    reactor.run()
    reactor.close()
    assert lab.shown == [[10, 20], [11, 21], [13, 23]]


def test_nothing_is_handed_over_where_there_is_nothing_to_tell() -> None:
    reactor, lab = Reactor(), Lab(failures=0)
    subject = Delivery(reactor, news=lambda _key: None, receiver=lab)
    reactor.post(lambda: subject.look({(1, 1)}))
    reactor.later(0.02, reactor.stop)
    reactor.run()
    reactor.close()
    assert lab.shown == []


def test_who_waits_until_news_are_taken_tells_each_receiver_once() -> None:
    first, second = Lab(failures=0), Lab(failures=2)
    deliver_now([first, second], [Observation(job_id=1, attempt=1, offset=7)], closed=threading.Event())
    assert (len(first.shown), len(second.shown)) == (1, 3)
    deliver_now([first], [], closed=threading.Event())
    assert len(first.shown) == 1


def test_who_is_closed_waits_no_more() -> None:
    closed, lab = threading.Event(), Lab(failures=10**6)
    waiting = threading.Thread(target=deliver_now, args=([lab], [Observation(job_id=1, attempt=1)]), kwargs={"closed": closed})
    waiting.start()
    closed.set()
    waiting.join()
