"""The reactor, with a clock of the test's own where time matters."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from carrel.core.transport.reactor import Reactor


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    yield read, write
    os.close(read)
    os.close(write)


def test_timers_ring_in_their_order_and_not_before_their_time() -> None:
    now = [100.0]
    reactor, told = Reactor(lambda: now[0]), list[str]()
    reactor.later(2.0, lambda: told.append("second"))
    reactor.later(1.0, lambda: told.append("first"))
    reactor.later(1.0, lambda: told.append("first too"))
    reactor.later(1.5, lambda: told.append("never")).cancel()
    reactor.later(50.0, lambda: told.append("much later"))
    now[0] += 2.0
    reactor.later(0.0, reactor.stop)
    reactor.run()
    assert told == ["first", "first too", "second"]
    reactor.close()


def test_other_threads_post_in_order_and_wake_it() -> None:
    reactor, told = Reactor(), list[int]()

    def other() -> None:
        for number in range(1000):
            reactor.post(partial(told.append, number))
        reactor.post(reactor.stop)

    thread = threading.Thread(target=other)
    reactor.post(thread.start)
    reactor.run()
    thread.join()
    assert told == list(range(1000))
    reactor.close()
    reactor.post(lambda: told.append(-1))  # harmless
    reactor.close()


def test_a_signal_handler_may_post_also_while_it_waits() -> None:
    reactor = Reactor()
    reactor.heed_signals()
    before = signal.signal(signal.SIGUSR1, lambda *_: reactor.post(reactor.stop))
    try:
        killer = threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGUSR1))
        reactor.post(killer.start)
        reactor.run()
        killer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
        reactor.close()


def test_what_works_in_a_thread_is_done_in_the_reactor() -> None:
    reactor, told = Reactor(), list[tuple[int, int]]()

    def done(where: int) -> None:
        told.append((where, threading.get_ident()))
        reactor.stop()

    reactor.work(threading.get_ident, done)
    reactor.run()
    ((there, here),) = told
    assert here == threading.get_ident() != there
    reactor.close()


def test_an_exception_ends_it_where_nobody_takes_it(pipe: tuple[int, int]) -> None:
    reactor = Reactor()
    reactor.post(lambda: 1 / 0)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        reactor.run()
    reactor.work(lambda: 1 / 0, lambda _number: None)
    with pytest.raises(ZeroDivisionError):
        reactor.run()
    reactor.close()


def test_an_exception_that_is_taken_does_not_end_it(pipe: tuple[int, int]) -> None:
    errors: list[Exception] = []
    reactor = Reactor(on_error=errors.append)

    def fail() -> None:
        os.read(pipe[0], 1)
        raise ValueError("a watched one")

    def ring() -> None:
        raise ValueError("a timer")

    def post() -> None:
        raise ValueError("a posted one")

    reactor.watch(pipe[0], fail)
    os.write(pipe[1], b"!")
    reactor.post(post)
    reactor.later(0.0, ring)
    reactor.later(0.0, lambda: reactor.post(reactor.stop))
    reactor.run()
    assert {str(error) for error in errors} == {"a watched one", "a posted one", "a timer"}
    reactor.close()


def test_a_descriptor_is_called_for_as_long_as_it_is_ready(pipe: tuple[int, int]) -> None:
    reactor, told = Reactor(), list[bytes]()

    def read() -> None:
        told.append(os.read(pipe[0], 1))
        if len(told) == 3:
            reactor.unwatch(pipe[0])
            reactor.unwatch(pipe[0])
            reactor.post(reactor.stop)

    reactor.watch(pipe[0], read)
    os.write(pipe[1], b"abcd")
    reactor.run()
    assert told == [b"a", b"b", b"c"]
    reactor.close()


def test_writing_is_waited_for_by_itself(pipe: tuple[int, int]) -> None:
    reactor = Reactor()
    reactor.watch(pipe[1], reactor.stop, read=False, write=True)
    reactor.run()
    reactor.watch(pipe[1], reactor.stop, read=False)  # no more
    reactor.post(reactor.stop)
    reactor.run()
    reactor.close()


def test_one_that_was_closed_in_this_round_is_not_called(pipe: tuple[int, int]) -> None:
    """Two are ready; the first of them has the other one closed, whose number becomes another's."""
    reactor, told = Reactor(), list[str]()
    pairs = [os.pipe2(os.O_NONBLOCK) for _ in range(2)]

    def first(other: int) -> None:
        told.append("called")
        for read, write in pairs:
            reactor.unwatch(read)
            if read == other:
                os.dup2(pipe[0], read)
                reactor.watch(read, lambda: told.append("of a stranger"))
            os.close(write)
        reactor.post(reactor.stop)

    for (read, write), (other, _write) in zip(pairs, reversed(pairs), strict=True):
        reactor.watch(read, partial(first, other))
        os.write(write, b"!")
    reactor.run()
    assert told == ["called"]
    reactor.close()
    for read, _write in pairs:
        os.close(read)


def test_it_goes_on_where_it_was_stopped() -> None:
    reactor, told = Reactor(), list[int]()
    for number in range(3):
        reactor.post(partial(told.append, number))
        reactor.post(reactor.stop)
    for expected in ([0], [0, 1], [0, 1, 2]):
        reactor.run()
        assert told == expected
    reactor.close()
