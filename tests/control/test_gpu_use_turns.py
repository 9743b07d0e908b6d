"""Few reports at once, few for one user, and none of it is left over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from carrel.core.control.gpu_use import GpuUse, Whose
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.user import Caller, User
from carrel.core.gpu_use import AttemptFacts, Grouping, LentFacts, Range, StartFacts
from carrel.testing.waiting import wait_until


class Slow:
    """A store whose reads last until the test says so."""

    def __init__(self) -> None:
        self.reading = 0
        self.go = threading.Event()

    def attempts(self, within: Range, whose: Whose) -> Iterator[AttemptFacts]:
        self.reading += 1
        assert self.go.wait(60)
        self.reading -= 1
        yield from ()

    def lent(self, within: Range, whose: Whose) -> Iterator[LentFacts]:
        yield from ()

    def starts(self, within: Range, whose: Whose) -> Iterator[StartFacts]:
        raise ValueError("broken")


def caller(name: str) -> Caller:
    return Caller(user=User(subject=name, name=name))


def test_two_are_made_at_once_and_one_user_has_three_at_most() -> None:
    store = Slow()
    use = GpuUse(store=store, clock=lambda: 100.0)

    def ask(name: str) -> object:
        return use.use(caller(name), begin=0, end=None, by=Grouping.USER)

    with ThreadPoolExecutor(8) as threads:
        try:
            # Whichever comes last is refused; the others are made or wait.
            asked = [threads.submit(ask, "ada") for _ in range(4)]
            wait_until(lambda: store.reading == 2 and any(one.done() for one in asked), "two that are made, and one refused")
            (refused,) = (one for one in asked if one.done())
            with pytest.raises(Unavailable, match="3 reports are being made for you"):
                refused.result()
            asked.append(threads.submit(ask, "bob"))
            assert store.reading == 2
        finally:
            store.go.set()
        for one in asked:
            if one is not refused:
                one.result()
    ask("ada")


def test_a_report_that_breaks_gives_its_turn_back() -> None:
    use = GpuUse(store=Slow(), clock=lambda: 100.0)
    for _ in range(5):
        with pytest.raises(ValueError, match="broken"):
            use.starts(caller("ada"), begin=0, end=None)
