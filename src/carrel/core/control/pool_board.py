"""What the lab has in memory of one pool: which calls wait, who has which, who listens. Without lock or database."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from carrel.core.domain.call import Body, Ending, WorkerPool

Bell = Callable[[], None]
#: Endings, and bodies of calls that wait, that are remembered of each pool.
RECENT, BODIES = 200, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A call that has ended, for those who follow."""

    #: Its place among those of its pool, from 1 on.
    number: int
    job_id: int | None
    ending: Ending


@dataclass(slots=True, kw_only=True)
class Worker:
    """A job that carries out calls."""

    job_id: int
    #: Of its last request; None before the first.
    attempt: int | None = None
    call: int | None = None
    #: Since when it has nothing to do; None before its first request, and while it has a call.
    idle_since: float | None = None


@dataclass(slots=True, kw_only=True)
class Output:
    """A piece of what a call printed, as it was printed."""

    call_id: int
    #: "stdout", "stderr".
    stream: str
    #: Bytes before it.
    offset: int
    data: bytes


@dataclass(eq=False, slots=True, kw_only=True)
class Listener:
    """Somebody who follows the calls of a pool; `bell` may be rung in any thread."""

    bell: Bell
    #: Calls that have begun, with their workers, and what was printed since it was looked last.
    begun: list[tuple[int, int]] = field(default_factory=list)
    output: deque[Output] = field(default_factory=lambda: deque(maxlen=1000))


@dataclass(slots=True, kw_only=True)
class Board:
    """One pool."""

    pool: WorkerPool
    #: Calls in the order in which they begin.
    waiting: deque[int] = field(default_factory=deque)
    #: Of calls that have not ended: how often they may begin again.
    retries: dict[int, int] = field(default_factory=dict)
    #: And which function each is of.
    functions: dict[int, str] = field(default_factory=dict)
    workers: dict[int, Worker] = field(default_factory=dict)
    #: Bells of workers that wait for a call, first come first.
    bells: deque[Bell] = field(default_factory=deque)
    listeners: set[Listener] = field(default_factory=set)
    #: Small arguments of calls that wait, so that they need not be read again.
    bodies: dict[int, Body] = field(default_factory=dict)
    #: The calls that ended last, with what came of them, in their order.
    recent: deque[Ended] = field(default_factory=lambda: deque(maxlen=RECENT))
    #: Number of the call that ended last.
    ended: int = 0
    #: Workers in a row that ended before they asked for a call.
    stillborn: int = 0
    #: Workers that were started since the lab runs; part of their keys.
    started: int = 0
    #: What keeps workers from being started, for those who wait.
    trouble: str = ""

    @property
    def running(self) -> int:
        """How many calls are being carried out."""
        return sum(worker.call is not None for worker in self.workers.values())

    def ring_workers(self, number: int) -> None:
        """Wake so many of the workers that wait."""
        for _ in range(min(number, len(self.bells))):
            self.bells.popleft()()

    def tell(self) -> None:
        """Wake all who follow."""
        for listener in self.listeners:
            listener.bell()
