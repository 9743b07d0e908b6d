"""What the lab has in memory of one pool: which calls wait, who has which, who listens. Without lock or database."""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

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
#: Seconds that the calls which a worker gets at once take together, and most of them. More of either saves little, and what a
#: worker has in its hands cannot go to another one at once.
_AHEAD, _MOST_AHEAD = 0.02, 32


def nobody() -> None:
    """The bell of a request that does not wait for the answer."""


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
    #: It may have to wait, for a GPU or for calls before it; another one says that it has begun.
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A call that a worker is given."""

    call_id: int
    #: Digest.
    function: str
    arguments: Body
    #: Seconds that it may take; None: as long as it likes.
    time_limit: float | None = None


#: What a worker is answered: calls that it carries out in this order. None of them: it is not needed any more.
Hand: TypeAlias = Sequence[Given]


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
    #: What it was given and has not told the end of, in the order in which they begin.
    calls: list[int] = field(default_factory=list)
    #: The call that has begun, as far as the worker has said; the first one of a hand, unless it waits for a GPU.
    begun: int | None = None
    #: Calls that their owner wants to be interrupted.
    interrupted: set[int] = field(default_factory=set)
    #: By call, of those who want it back, if it has not begun. Rung when that is known.
    askers: dict[int, list[Bell]] = field(default_factory=dict)
    #: Rung when there is something to know about its calls.
    watch: Bell | None = None
    #: The call that has printed last; 0: it has had none. What that has printed and shown by now, for who begins to follow it,
    #: and its bytes.
    prints_of: int = 0
    printed: list[Output] = field(default_factory=list)
    kept: int = 0
    #: The ends of its streams.
    tails: dict[str, Tail] = field(default_factory=dict)
    #: Since when it has nothing to do; None before its first request, and while it has a call.
    idle_since: float | None = None

    def takes(self, calls: Sequence[int]) -> None:
        """It has these calls now."""
        self.calls, self.idle_since = list(calls), None
        self._prints_of(calls[0])

    def _prints_of(self, call_id: int) -> None:
        self.prints_of, self.printed, self.kept, self.tails = call_id, [], 0, {}

    def prints(self, pieces: Iterable[Output]) -> Sequence[Output]:
        """Keep what its call prints, up to a limit; return those pieces that are of a call of its. 0: it has had no call."""
        found = [piece for piece in pieces if piece.call_id in (self.calls or (0,))]
        for piece in found:
            if piece.call_id != self.prints_of:
                self._prints_of(piece.call_id)
            if piece.stream != "display":
                self.tails.setdefault(piece.stream, Tail()).add(piece.offset, piece.data)
            if self.kept < _KEPT:
                self.printed.append(piece)
                self.kept += len(piece.data)
        return found

    def last_words(self, stream: str, call_id: int | None = None) -> bytes:
        """The end of what it has printed, as an ending has it; of a call: if that was what printed last."""
        return self.tails.get(stream, Tail()).packed if call_id in (None, self.prints_of) else b""

    def ring(self) -> None:
        """Wake who watches its call."""
        if self.watch is not None:
            self.watch()

    def wake(self) -> None:
        """Wake all who wait for news of its call."""
        self.ring()
        for bell in [bell for askers in self.askers.values() for bell in askers]:
            bell()

    def want_back(self, call_id: int, bell: Bell) -> None:
        """A user wants a call back, if it has not begun; `bell` is rung when that is known."""
        askers = self.askers.setdefault(call_id, [])
        if bell not in askers:
            askers.append(bell)
            self.ring()

    def want_all_back(self, wanted: Iterable[int]) -> None:
        """Of its calls, those which are wanted back do not begin any more; nothing waits for the answer."""
        for call_id in set(self.calls) & set(wanted) - {self.begun}:
            self.want_back(call_id, nobody)

    def begins(self, call_id: int) -> None:
        """It is too late to want the call back."""
        self.begun = call_id
        self._answer(call_id)

    def drop(self, calls: Iterable[int]) -> None:
        """It has these calls no more."""
        for call_id in calls:
            self.calls.remove(call_id)
            self.interrupted.discard(call_id)
            self._answer(call_id)
        if self.begun not in self.calls:
            self.begun = None
        self.ring()

    def _answer(self, call_id: int) -> None:
        for bell in self.askers.pop(call_id, ()):
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
    """A client that follows the calls of a pool; its bells may be rung in any thread."""

    bell: Bell
    #: For a beginning, which need not be told at once.
    soon: Callable[[Begun], None]
    #: Calls that have begun, and what was printed, since it was looked last.
    begun: list[Begun] = field(default_factory=list)
    output: deque[Output] = field(default_factory=lambda: deque(maxlen=1000))


@dataclass(slots=True, kw_only=True)
class Board:
    """One pool."""

    pool: WorkerPool
    #: Digests of functions that calls have named: the pool has these.
    digests: set[str] = field(default_factory=set)
    #: Calls in the order in which they begin.
    waiting: deque[int] = field(default_factory=deque)
    #: Of calls that have not ended: how often they may begin again.
    retries: dict[int, int] = field(default_factory=dict)
    #: And which function each is of.
    functions: dict[int, str] = field(default_factory=dict)
    #: And of those that have one, the limit of their time.
    limits: dict[int, float] = field(default_factory=dict)
    #: Those of them whose arguments lie in files.
    large: set[int] = field(default_factory=set)
    #: Seconds that a call of a function takes, by its digest, as workers say. It rises at once, and falls slowly.
    pace: dict[str, float] = field(default_factory=dict)
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
        return sum(bool(worker.calls) for worker in self.workers.values())

    @property
    def lacks_workers(self) -> bool:
        """True when there are fewer workers than calls, and may be more."""
        return len(self.workers) < min(self.pool.max_workers, len(self.waiting) + self.running)

    def next_hand(self) -> list[int]:
        """Take out of the line what a worker gets at once: one call, or several where all are known to be short.

        Each worker that there may be gets its part of the line. A call that borrows a GPU, or has large arguments, is alone.
        """
        most = 1 if self.borrows else min(_MOST_AHEAD, math.ceil(len(self.waiting) / self.pool.max_workers))
        hand = [self.waiting.popleft()]
        left = _AHEAD - self._takes(hand[0])
        while self.waiting and len(hand) < most and (left := left - self._takes(self.waiting[0])) >= 0:
            hand.append(self.waiting.popleft())
        return hand

    def _takes(self, call_id: int) -> float:
        return math.inf if call_id in self.large else self.pace.get(self.functions.get(call_id, ""), math.inf)

    def took(self, call_id: int, seconds: float) -> None:
        """A call was carried out in so many seconds."""
        if (function := self.functions.get(call_id)) is not None:
            self.pace[function] = max(seconds, 0.75 * self.pace.get(function, 0) + 0.25 * seconds)

    def forget(self, call_id: int) -> None:
        """The call has ended."""
        self.retries.pop(call_id, None)
        self.functions.pop(call_id, None)
        self.limits.pop(call_id, None)
        self.bodies.pop(call_id, None)
        self.large.discard(call_id)

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
        return next((worker for worker in self.workers.values() if call_id in worker.calls), None)

    def follow(self, listener: Listener) -> None:
        """Tell it from now on what is new, and first what is known of calls that run."""
        for worker in self.workers.values():
            for call_id in worker.calls:
                listener.begun.append(Begun(call_id=call_id, job_id=worker.job_id, waits=worker.begun != call_id))
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
        """Tell all who follow that a worker has taken a call."""
        for listener in self.listeners:
            listener.begun.append(begun)
            listener.soon(begun)

    def tell(self) -> None:
        """Wake all who follow."""
        for listener in self.listeners:
            listener.bell()
