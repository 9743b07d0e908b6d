"""The thread in which the local engine learns what becomes of its attempts.

It sleeps until something wakes it: a doorbell (news in a journal or a log), a pidfd (a runner is gone), the nursery (a runner
was made, or the nursery is gone). Every `TICK` seconds it looks at everything once, in case a ring was lost.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import Observation
from carrel.core.domain.ports import Clock
from carrel.core.spool import take_claim
from carrel.core.spool.disk import full_at, is_full
from carrel.core.transport.reactor import Reactor
from carrel.engines.attempts import ClaimState, Key, Watched, find_runner, write_launch
from carrel.engines.delivery import Delivery, News, Receiver
from carrel.engines.doorbells import Doorbells
from carrel.engines.leftovers import kill_leftovers
from carrel.engines.nursery import Answer, Nursery

#: Seconds between two looks at everything.
TICK = 5.0
#: Runners that are asked for before an attempt whose runners die unclaimed is given up.
_TRIES = 3

_log = logging.getLogger(__name__)


class Observer:
    """Watches attempts. The first group of methods may be called from any thread; the rest happens in its own."""

    def __init__(self, *, doorbells: Doorbells, nursery: Nursery, deliver: Receiver, monotonic: Clock) -> None:
        self._nursery = nursery
        self._doorbells = doorbells
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._watched: dict[Key, Watched] = {}
        self._by_directory: dict[str, Watched] = {}
        self._closed = False
        self._reactor = Reactor(monotonic, on_error=_failed)
        self._delivery = Delivery(self._reactor, news=self._news, receiver=deliver)
        self._reactor.watch(doorbells, self._on_rings)
        self._nursery_fd = -1
        self._thread = threading.Thread(target=self._reactor.run, name="carrel-engine", daemon=True)

    # --- from any thread ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self.call(self._start_nursery)
        self.call(self._tick)
        self._thread.start()

    def watch(self, watched: Watched) -> bool:
        """Watch an attempt; return False when it is watched already."""
        with self._lock:
            if watched.key in self._watched:
                return False
            self._watched[watched.key] = watched
            self._by_directory[str(watched.directory.path)] = watched
        return True

    def forget(self, key: Key) -> None:
        """Watch the attempt no more; at once, so that it can be watched anew."""
        with self._lock:
            watched = self._watched.pop(key, None)
            if watched is None:
                return
            self._by_directory.pop(str(watched.directory.path), None)
        self.call(partial(self._drop, watched))

    def find(self, key: Key) -> Watched | None:
        """Return what is remembered of an attempt, or None when it is not watched."""
        return self._watched.get(key)

    def all(self) -> list[Watched]:
        """Return everything that is watched."""
        with self._lock:
            return list(self._watched.values())

    def call(self, function: Callable[[], None]) -> None:
        """Run `function` in the thread, soon, in the order of the calls."""
        self._reactor.post(function)

    def close(self) -> None:
        """Stop the thread and wait for it; again is harmless."""
        if self._closed:
            return
        self._closed = True
        self.call(self._reactor.stop)
        if self._thread.ident is not None:
            self._thread.join()
        for watched in self.all():
            watched.let_go()
        self._reactor.close()

    # --- in the thread ------------------------------------------------------------------------------------------------------

    def settle(self, watched: Watched) -> None:
        """Find out whether the attempt has a runner: attach to it, or ask for one, or note that it is gone."""
        if watched.over or watched.dead or watched.in_flight or watched.pidfd >= 0:
            return
        life = find_runner(watched)
        if life is ClaimState.UNCLAIMED and watched.asked >= _TRIES:
            life = self._give_up(watched)
        if life is ClaimState.ALIVE:
            self._reactor.watch(watched.pidfd, partial(self._on_exit, watched))
        elif life is ClaimState.DEAD:
            watched.dead = True
            kill_leftovers(watched.directory)
        elif life is ClaimState.UNCLAIMED:
            self._ask(watched)
        self._delivery.look({watched.key})

    def _drop(self, watched: Watched) -> None:
        watched.over = True
        self._release(watched)

    def resettle(self, watched: Watched) -> None:
        """Settle an attempt for which no answer will come."""
        watched.in_flight = False
        self.settle(watched)

    def _ask(self, watched: Watched) -> None:
        try:
            write_launch(watched)
            watched.in_flight = True
            self._nursery.ask(watched.directory.path, watched.launch.devices)
            watched.asked += 1
        except CarrelError as error:  # the next tick tries again; there is no runner, and its files may be gone
            watched.in_flight = False
            watched.asked = 0
            _log.warning("job %d, attempt %d, cannot be started yet: %s", *watched.key, error)

    def _give_up(self, watched: Watched) -> ClaimState:
        """Make sure that no runner will ever take the attempt."""
        _log.error("job %d, attempt %d: %d runners died before they claimed it", *watched.key, watched.asked)
        try:
            claim = take_claim(watched.directory.claim, os.getpid())
        except OSError as error:
            if is_full(error):  # that is what they died of: nothing has run, and it may be tried again
                _log.warning("job %d, attempt %d, cannot be claimed: %s", *watched.key, full_at(watched.directory.path, error))
                watched.asked = 0
                return ClaimState.UNCLAIMED
            _log.exception("job %d, attempt %d, cannot be claimed", *watched.key)
            return ClaimState.DEAD
        if claim is not None:
            os.close(claim)
            return ClaimState.DEAD
        return find_runner(watched)

    def _tick(self) -> None:
        self._reactor.later(TICK, self._tick)
        for watched in self.all():
            self.settle(watched)
            self._delivery.look({watched.key})

    def _news(self, key: Key) -> News | None:
        """What its journal and log say."""
        watched = self.find(key)
        if watched is None or watched.over or (news := watched.news()) is None:
            return None
        return News(news, partial(self._delivered, watched, news))

    def _delivered(self, watched: Watched, news: Observation) -> None:
        watched.delivered(news)
        if watched.over:
            self._release(watched)

    def _release(self, watched: Watched) -> None:
        if watched.pidfd >= 0:
            self._reactor.unwatch(watched.pidfd)
            watched.let_go()

    # --- what wakes it ------------------------------------------------------------------------------------------------------

    def _on_rings(self) -> None:
        self._delivery.look(self._doorbells.rings())

    def _on_exit(self, watched: Watched) -> None:
        self._release(watched)
        self._delivery.look({watched.key})
        if not watched.ended():
            self.settle(watched)

    def _start_nursery(self) -> None:
        if not self._nursery.start():
            self._reactor.later(min(TICK, self._nursery.start_at - self._monotonic()), self._start_nursery)
            return
        self._nursery_fd = self._nursery.fileno()
        self._reactor.watch(self._nursery_fd, self._on_nursery)
        for watched in self.all():
            self.settle(watched)

    def _on_nursery(self) -> None:
        answers = self._nursery.answers()
        if answers is None:
            _log.warning("the process that starts runners is gone; the runners go on, and another one is started")
            self._reactor.unwatch(self._nursery_fd)
            for watched in self.all():
                watched.in_flight = False
            self._start_nursery()
            return
        for answer in answers:
            self._on_answer(answer, self._by_directory.get(answer.directory))

    def _on_answer(self, answer: Answer, watched: Watched | None) -> None:
        if watched is not None:
            watched.in_flight = False
            self._delivery.look({watched.key})
        if answer.pidfd < 0:
            _log.warning("no runner for %s: %s", answer.directory, answer.error)
        elif watched is None or watched.over or watched.pidfd >= 0:
            os.close(answer.pidfd)
        else:
            watched.attach(answer.pidfd)
            self._reactor.watch(watched.pidfd, partial(self._on_exit, watched))


def _failed(_error: Exception) -> None:
    _log.exception("the engine's observer failed and goes on")  # the next tick looks at everything
