"""Orders on their way: each is sent to its process, sent again over a new connection, and its answer goes to the script."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.core.transport.reactor import Reactor, Timer
from carrel.node.broker.orders import Order, Outcome, Script, Work
from carrel.node.leases.protocol import Message, encode

#: Seconds without an answer, or a sign of progress, after which an order is given up.
SILENCE_SECONDS = 30.0


@dataclass(slots=True)
class _Given:
    order: Order
    script: Script
    done: Callable[[Outcome], None]
    timer: Timer | None = None


class Orders:
    """Carries out scripts. All methods are called in the loop's thread and call back in it."""

    def __init__(self, loop: Reactor, *, send: Callable[[str, bytes, Sequence[int]], None], lives: Callable[[str], bool]) -> None:
        """`send`: a line, and descriptors with it, to a process that is connected. `lives`: the process has not ended."""
        self._loop = loop
        self._send = send
        self._lives = lives
        self._ids = itertools.count(1)
        self._given: dict[int, _Given] = {}

    def each(
        self, members: Iterable[str], script: Callable[[str], Script], done: Callable[[Mapping[str, Outcome]], None]
    ) -> None:
        """Carry out a script with each of the processes at once; `done` with what came of it for those that live."""
        left = {member for member in members if self._lives(member)}
        outcomes: dict[str, Outcome] = {}
        if not left:
            self._loop.post(lambda: done(outcomes))
            return

        def one_done(member: str) -> Callable[[Outcome], None]:
            def ended(outcome: Outcome) -> None:
                outcomes[member] = outcome
                left.discard(member)
                if not left:
                    done(outcomes)

            return ended

        for member in sorted(left):
            self.begin(script(member), one_done(member))

    def begin(self, script: Script, done: Callable[[Outcome], None] = lambda _outcome: None) -> None:
        """Carry out a script; `done` with what came of it."""
        self._go_on(script, done, None)

    def open(self) -> list[Order]:
        """Orders that are not answered."""
        return [given.order for given in self._given.values()]

    def repeat(self, member: str) -> None:
        """The process is connected again: it gets its open orders once more."""
        for number, given in sorted(self._given.items()):
            if given.order.member == member:
                self._tell(number, given.order)

    def ended(self, member: str) -> None:
        """The process has ended: nobody waits for its answers."""
        for number in [number for number, given in self._given.items() if given.order.member == member]:
            self._answer(number, None)

    def heard(self, member: str, message: Message) -> bool:
        """Take what is about an open order of the process, its answer or its progress. False: it is about none."""
        number = message.get("id")
        given = self._given.get(number) if isinstance(number, int) else None
        if not isinstance(number, int) or given is None or given.order.member != member:
            return False
        if message["op"] == given.order.answer:
            self._answer(number, message)
        elif message["op"] == "progress":
            self._wait(number, given)
        return True

    def _go_on(self, script: Script, done: Callable[[Outcome], None], answer: Any) -> None:
        try:
            order = script.send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            self._loop.post(lambda: done(outcome))  # not from within the answer to somebody else
            return
        if isinstance(order, Work):
            self._loop.work(order.do, lambda result: self._go_on(script, done, result))
            return
        number = next(self._ids)
        given = self._given[number] = _Given(order, script, done)
        self._wait(number, given)
        self._tell(number, order)

    def _tell(self, number: int, order: Order) -> None:
        line = encode(order.op, id=number, **order.fields)
        self._send(order.member, line, [piece.fd for piece in order.pieces])

    def _wait(self, number: int, given: _Given) -> None:
        if given.timer is not None:
            given.timer.cancel()
        given.timer = self._loop.later(SILENCE_SECONDS, lambda: self._answer(number, None))

    def _answer(self, number: int, message: Message | None) -> None:
        given = self._given.pop(number)
        if given.timer is not None:
            given.timer.cancel()
        self._go_on(given.script, given.done, message)
