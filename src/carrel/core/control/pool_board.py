"""What the lab has in memory of one pool: which calls wait, who has which, who listens. Without lock or database."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from carrel.core.domain.call import Body, Ending, WorkerPool

Bell = Callable[[], None]
#: Endings, and bodies of calls that wait, that are remembered of each pool.
RECENT, BODIES = 200, 1000
#: Bytes of what a call prints and shows that are kept for who begins to follow it.
_KEPT = 1024 * 1024
#: Bytes of each stream that are kept of a call whose worker dies.
_LAST = 256 * 1024
#: Seconds without a client after which no worker is kept for calls to come, and after which a pool with nothing to do is closed.
_KEEPS, ABANDONED = 300.0, 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A call that has ended, for those who follow."""

    #: Its place among those of its pool, from 1 on.
    number: int
    job_id: int | None
    ending: Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A worker has taken a call, for those who follow."""

    call_id: int
    job_id: int
    #: It may have to wait for a GPU; another one says that it has begun.
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a worker is answered: a call with its arguments, or that it is not needed any more."""

    call_id: int | None = None
    #: Digest.
    function: str = ""
    arguments: Body | None = None
    #: Seconds.
    time_limit: float | None = None
    retire: bool = False


@dataclass(slots=True, kw_only=True)
class Tail:
    """The end of what was written to a stream."""

    size: int = 0
    data: bytes = b""

    def add(self, offset: int, piece: bytes) -> None:
        """Take a piece; what is known of it stays."""
        if offset + len(piece) > self.size:
            before = self.data if offset <= self.size else b""
            self.data = (before + piece[max(0, self.size - offset) :])[-_LAST:]
            self.size = offset + len(piece)

    @property
    def packed(self) -> bytes:
        """As an ending has it: how many bytes there were, and the end of them."""
        return struct.pack(">Q", self.size) + self.data if self.size else b""


@dataclass(slots=True, kw_only=True)
class Worker:
    """A job that carries out calls."""

    job_id: int
    #: Of its last request; None before the first.
    attempt: int | None = None
    call: int | None = None
    #: The call that has begun: with a GPU that it borrows, as far as the worker has said.
    begun: int | None = None
    #: The call that its owner wants to be interrupted.
    interrupted: int | None = None
    #: Of those who want its call back, if it has not begun. Rung when that is known.
    askers: list[Bell] = field(default_factory=list)
    #: Rung when there is something to know about its call.
    watch: Bell | None = None
    #: What its present call, or else its last one, has printed and shown by now, for who begins to follow it, and its bytes.
    printed: list[Output] = field(default_factory=list)
    kept: int = 0
    #: The ends of its streams.
    tails: dict[str, Tail] = field(default_factory=dict)
    #: Since when it has nothing to do; None before its first request, and while it has a call.
    idle_since: float | None = None

    def takes(self, call_id: int) -> None:
        """It has a call now."""
        self.call, self.idle_since, self.printed, self.kept, self.tails = call_id, None, [], 0, {}

    def prints(self, pieces: Iterable[Output]) -> Sequence[Output]:
        """Keep what its call prints, up to a limit; return those of the pieces that are that call's. 0: it has had no call."""
        found = [piece for piece in pieces if piece.call_id == (self.call or 0)]
        for piece in found:
            if piece.stream != "display":
                self.tails.setdefault(piece.stream, Tail()).add(piece.offset, piece.data)
            if self.kept < _KEPT:
                self.printed.append(piece)
                self.kept += len(piece.data)
        return found

    def last_words(self, stream: str) -> bytes:
        """The end of what it has printed, as an ending has it."""
        return self.tails.get(stream, Tail()).packed

    def ring(self) -> None:
        """Wake who watches its call."""
        if self.watch is not None:
            self.watch()

    def wake(self) -> None:
        """Wake all who wait for news of its call."""
        self.ring()
        for bell in self.askers:
            bell()

    def want_back(self, bell: Bell) -> None:
        """Somebody wants its call back, if it has not begun; `bell` is rung when that is known."""
        if bell not in self.askers:
            self.askers.append(bell)
            self.ring()

    def begins(self, call_id: int) -> None:
        """It is too late to want the call back."""
        self.begun = call_id
        self._answer()

    def drop(self) -> None:
        """It has no call any more."""
        self.call = self.begun = self.interrupted = None
        self.ring()
        self._answer()

    def _answer(self) -> None:
        askers, self.askers = self.askers, []
        for bell in askers:
            bell()


@dataclass(slots=True, kw_only=True)
class Output:
    """A piece of what a call printed, as it was printed."""

    call_id: int
    #: "stdout", "stderr"; "display" for what it shows.
    stream: str
    #: Bytes before it; displays before it.
    offset: int
    data: bytes


@dataclass(eq=False, slots=True, kw_only=True)
class Listener:
    """Somebody who follows the calls of a pool; `bell` may be rung in any thread."""

    bell: Bell
    #: Calls that have begun, and what was printed, since it was looked last.
    begun: list[Begun] = field(default_factory=list)
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
    #: And of those that have one, the limit of their time.
    limits: dict[int, float] = field(default_factory=dict)
    workers: dict[int, Worker] = field(default_factory=dict)
    #: Bells of workers that wait for a call, first come first.
    bells: deque[Bell] = field(default_factory=deque)
    listeners: set[Listener] = field(default_factory=set)
    #: Since when there are none.
    unfollowed_since: float
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

    @property
    def borrows(self) -> bool:
        """True when a call waits for its GPU after a worker has taken it."""
        return not self.pool.reserve

    def holder(self, call_id: int) -> Worker | None:
        """The worker that has the call."""
        return next((worker for worker in self.workers.values() if worker.call == call_id), None)

    def follow(self, listener: Listener) -> None:
        """Tell it from now on what is new, and first what is known of calls that run."""
        for worker in self.workers.values():
            if worker.call is not None:
                waits = self.borrows and worker.begun != worker.call
                listener.begun.append(Begun(call_id=worker.call, job_id=worker.job_id, waits=waits))
            listener.output.extend(worker.printed)
        self.listeners.add(listener)

    def unfollow(self, listener: Listener, now: float) -> None:
        """It is told nothing more."""
        self.listeners.discard(listener)
        self.unfollowed_since = now

    def least(self, now: float) -> int:
        """Workers that are kept although nothing is to do: a program that was killed, or whose machine sleeps, needs none."""
        kept = self.pool.closed_at is None and (self.listeners or now - self.unfollowed_since < _KEEPS)
        return self.pool.min_workers if kept else 0

    def abandoned(self, now: float) -> bool:
        """True when it has nothing to do, and no client has followed it for long."""
        busy = self.retries or self.workers or self.listeners or self.pool.closed_at is not None
        return not busy and now - self.unfollowed_since >= ABANDONED

    def tell_begun(self, begun: Begun) -> None:
        """Wake all who follow: a worker has taken a call."""
        for listener in self.listeners:
            listener.begun.append(begun)
        self.tell()

    def tell(self) -> None:
        """Wake all who follow."""
        for listener in self.listeners:
            listener.bell()
