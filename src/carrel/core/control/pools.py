"""Pools of workers: calls go in, workers take them, endings come out. A call begins once, unless it asks for more.

A call that is given to a worker is written down as its first, so that it cannot begin a second time by accident: neither when the
lab is killed nor when an answer is lost. A worker says with each request which calls it holds; one that it was given and does not
know of has not begun, and waits again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from carrel.core.control.pool_board import BODIES, Begun, Bell, Board, Ended, Given, Hand, Listener, Output, Worker
from carrel.core.control.pool_calls import PoolCalls, cancelled, expect, waiting
from carrel.core.control.pool_ports import CallStore, Workers
from carrel.core.control.pool_stops import PoolStops
from carrel.core.control.pool_waits import Share, Waiting
from carrel.core.control.pool_worker_jobs import PoolWorkerJobs
from carrel.core.control.ports import JobStore
from carrel.core.domain.call import Body, Call, CallState, Ending, NewCall, WorkerPool
from carrel.core.domain.errors import Conflict, NotFound, TooMany
from carrel.core.domain.job import Job
from carrel.core.domain.ports import Clock
from carrel.core.domain.units import format_count
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed
from carrel.core.policy.pool_size import may_leave


class Pools:
    """All pools of a lab. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    def __init__(
        self,
        *,
        store: CallStore,
        jobs: JobStore,
        workers: Workers,
        clock: Clock,
        discard: Callable[[Body], None],
        share: Share,
        check_room: Callable[[Caller], None],
        most: int,
    ) -> None:
        """`discard` removes the file of a body that nobody needs; `share` gives it a second owner.

        `check_room` raises `StorageFull` where the caller may store no more; `most`: calls of one user that have not ended.
        """
        self._store = store
        self._jobs = jobs
        self._workers = workers
        self._clock = clock
        self._discard = discard
        self._check_room = check_room
        self._most = most
        self._guard = threading.RLock()
        self._boards: dict[int, Board] = {}
        self._calls = PoolCalls(
            self._boards, store=store, share=share, discard=discard, clock=clock, changed=lambda: self.changed()
        )
        self._worker_jobs = PoolWorkerJobs(
            self._boards,
            self._guard,
            self._calls,
            store=store,
            jobs=jobs,
            workers=workers,
            clock=clock,
            close=lambda board: self._close(board, cancel=True),
            changed=lambda: self.changed(),
        )
        #: Cancels and interrupts calls.
        self.stops = PoolStops(self._boards, self._guard, self._calls, pool=self.pool, call=self.call, worker=self._worker)
        #: Wakes `carrel.core.control.pool_loop`, which looks after the number of workers.
        self.changed: Bell = lambda: None

    def load(self) -> None:
        """Take up what an earlier server left."""
        with self._guard:
            self._worker_jobs.load()
            self._calls.load(self._jobs.get)

    def jobs(self) -> Sequence[int]:
        """Jobs whose ends matter: workers, and those that opened a pool."""
        return self._worker_jobs.jobs()

    def job_changed(self, job_id: int) -> None:
        """Something happened to a job: if it is a worker and runs no more, its call is lost; so are pools that it opened."""
        self._worker_jobs.job_changed(job_id)

    def start_missing(self) -> bool:
        """Start the workers that pools lack. Returns False when one could not be started now, and should be tried again."""
        return self._worker_jobs.start_missing()

    # ---- pools

    def open(self, caller: Caller, asked: WorkerPool) -> WorkerPool:
        """Make a pool. A worker of it could be submitted: otherwise that is said now."""
        allowed(caller, Action.SUBMIT).check()
        asked = replace(self._workers.settle(caller, asked), owner=caller.user.subject, parent=caller.job_id)
        with self._guard:
            pool = self._store.add_pool(replace(asked, created_at=self._clock()))
            self._boards[pool.id] = Board(pool=pool, unfollowed_since=pool.created_at)
        self.changed()
        return pool

    def pools(self, caller: Caller, *, closed: bool = False) -> Sequence[WorkerPool]:
        """The caller's own, newest first."""
        allowed(caller, Action.LOOK).check()
        return self._store.pools(owner=caller.user.subject, closed=closed)

    def pool(self, caller: Caller, pool_id: int, action: Action = Action.USE_POOL) -> WorkerPool:
        """The pool, if the caller may do `action` with it. Raises `NotFound`."""
        board = self._boards.get(pool_id)
        pool = board.pool if board is not None else self._store.pool(pool_id)
        missing = NotFound(f"There is no pool {pool_id}.", remedy="`carrel pool list` shows yours.")
        if pool is None:
            raise missing
        allowed(caller, action, Resource(owner=pool.owner)).check(missing)
        return pool

    def at_hand(self, pool_id: int) -> bool:
        """True for a pool that is in memory: `pool` takes no waiting then."""
        return pool_id in self._boards

    def is_over(self, pool_id: int) -> bool:
        """True for a pool that takes no more calls, all of whose calls have ended."""
        board = self._boards.get(pool_id)
        return board is None or (board.pool.closed_at is not None and not board.retries)

    def counts(self, pool_id: int) -> Mapping[str, int]:
        """How many calls of the pool are in each state."""
        return self._store.counts(pool_id)

    def workers(self, pool_id: int) -> Sequence[Job]:
        """Jobs that are its workers now."""
        with self._guard:
            board = self._boards.get(pool_id)
            numbers = list(board.workers) if board is not None else []
        return [job for number in numbers if (job := self._jobs.get(number)) is not None]

    def trouble(self, pool_id: int) -> str:
        """What keeps the pool's workers from being started; "" when nothing does."""
        board = self._boards.get(pool_id)
        return "" if board is None else board.trouble

    def unfollowed_since(self, pool_id: int) -> float | None:
        """Since when no client follows the pool's calls; None while one does, and of a closed pool."""
        board = self._boards.get(pool_id)
        return None if board is None or board.listeners or board.pool.closed_at is not None else board.unfollowed_since

    def close(self, caller: Caller, pool_id: int, *, cancel: bool) -> WorkerPool:
        """Take no more calls; with `cancel`, those that wait do not begin. What runs is finished, and workers leave."""
        pool = self.pool(caller, pool_id)
        with self._guard:
            board = self._boards.get(pool_id)
            if board is None:
                return pool
            self._close(board, cancel=cancel)
        self.changed()
        return board.pool

    def remove(self, caller: Caller, pool_id: int) -> None:
        """Forget a pool that is over, with its calls and their results. Raises `Conflict` while there is something left to do."""
        self.pool(caller, pool_id)
        with self._guard:
            board = self._boards.get(pool_id)
            if board is not None:
                left = len(board.retries)
                what = f"{format_count(left, 'call')} not over" if left else "workers that have not left yet"
                raise Conflict(
                    f"Pool {pool_id} has {what}." if board.pool.closed_at is not None else f"Pool {pool_id} is open.",
                    remedy=f"carrel pool close {pool_id} --cancel ends it; then remove it.",
                )
            if self._store.needed_elsewhere(pool_id):
                raise Conflict(
                    f"Calls of another pool need results of pool {pool_id}.", remedy="Wait until they have ended, or cancel them."
                )
            bodies = self._store.remove_pool(pool_id)
        for body in bodies:
            self._discard(body)

    def _close(self, board: Board, *, cancel: bool) -> None:
        now = self._clock()
        self._store.close_pool(board.pool.id, now=now)
        board.pool = replace(board.pool, closed_at=board.pool.closed_at or now)
        if cancel:
            gone, board.waiting = [*board.waiting, *self._calls.waits.of_pool(board.pool.id)], deque()
            self._calls.end(board, [cancelled(call_id) for call_id in gone])
            for worker in board.workers.values():
                worker.want_all_back(worker.calls)
        board.ring_workers(len(board.bells))
        board.tell()  # who follows it has heard all
        self._calls.forget_if_over(board)

    # ---- calls

    def add_function(self, caller: Caller, pool_id: int, digest: str, body: Body) -> None:
        """Keep a function for calls of it."""
        self.pool(caller, pool_id)
        self._check_bodies(caller, [body])
        if not self._store.add_function(pool_id, digest, body):
            self._discard(body)

    def function(self, caller: Caller, pool_id: int, digest: str) -> Body:
        """A function's content, for workers and the owner."""
        self.pool(caller, pool_id)
        found = self._store.function(pool_id, digest)
        if found is None:
            raise NotFound(f"Pool {pool_id} has no function {digest[:80]}.", remedy="Send it before calls of it.")
        return found

    def submit(self, caller: Caller, pool_id: int, new: Sequence[NewCall]) -> Sequence[int]:
        """Put calls in line; the numbers are in the order of `new`. A key that is known is the call that has it."""
        owner = self.pool(caller, pool_id).owner
        board = self._boards.get(pool_id)
        for digest in {call.function for call in new} - (board.digests if board is not None else set()):
            if self._store.function(pool_id, digest) is None:
                raise NotFound(f"Pool {pool_id} has no function {digest[:80]}.", remedy="Send it before calls of it.")
        self._check_bodies(caller, [call.body for call in new])
        with self._guard:
            board = self._open_board(pool_id)
            board.digests.update(call.function for call in new)
            self._check_number(owner, len(new))
            board.unfollowed_since = self._clock()  # its client is there
            self._check_dependencies(owner, new)
            numbers = self._store.add_calls(pool_id, new, now=self._clock())
            known = {number for number, is_new in numbers if not is_new}
            placed: list[Waiting] = []
            for call, (number, _) in zip(new, numbers, strict=True):
                if number in known:
                    self._discard(call.body)
                else:
                    expect(board, number, call, call.retries)
                    if call.body.path is not None:
                        board.large.add(number)
                    elif len(board.bodies) < BODIES:
                        board.bodies[number] = call.body
                    placed.append(waiting(board, number, call.dependencies, call.cache))
            self._calls.waits.place(placed)
        return [number for number, _ in numbers]

    def _check_bodies(self, caller: Caller, bodies: Sequence[Body]) -> None:
        if any(body.path is not None for body in bodies):
            self._check_room(caller)

    def _check_number(self, owner: str, more: int) -> None:
        has = sum(len(board.retries) for board in self._boards.values() if board.pool.owner == owner)
        if has + more > self._most:
            raise TooMany(
                f"You have {format_count(has, 'call')} that have not ended, and {more} more would pass the {self._most} that the "
                "lab lets each user have (waiting_calls).",
                remedy="Wait until some have ended, or let one call do more: lab.map(f, items, chunksize=100).",
            )

    def _check_dependencies(self, owner: str, new: Sequence[NewCall]) -> None:
        needed = {one for call in new for one in call.dependencies}
        unknown = needed.difference(self._store.states(owner, needed)) if needed else set()
        if unknown:
            raise NotFound(f"There is no call {min(unknown)}.", remedy="A call can need the results of your own calls.")
        if gone := self._store.without_results(needed):
            raise Conflict(
                f"The result of call {min(gone)} is not kept any more: its program has had it.",
                remedy="Pass the value itself, future.result().",
            )

    def waits_for(self, call_id: int) -> Sequence[int]:
        """The calls that a call waits for: whose results it needs, or which is equal to it."""
        with self._guard:
            return self._calls.waits.waits_for(call_id)

    def forget_cached(self, caller: Caller, function: str | None) -> int:
        """Keep none of the results for the caller's equal calls, or none of that function; returns how many there were."""
        allowed(caller, Action.SUBMIT).check()
        count, bodies = self._store.forget_cached(caller.user.subject, function)
        for body in bodies:
            self._discard(body)
        return count

    def call(self, caller: Caller, call_id: int) -> Call:
        """One call. Raises `NotFound`."""
        found = self._store.call(call_id)
        missing = NotFound(f"There is no call {call_id}.", remedy="`carrel pool show POOL` lists those of a pool.")
        if found is None:
            raise missing
        try:
            self.pool(caller, found.pool_id)
        except NotFound:
            raise missing from None
        return found

    def calls(
        self, caller: Caller, pool_id: int, *, before: int | None = None, limit: int = 100, state: CallState | None = None
    ) -> Sequence[Call]:
        """Calls of a pool, newest first: all, or those in a state."""
        self.pool(caller, pool_id)
        return self._store.list(pool_id, before=before, limit=limit, state=state)

    def log(self, caller: Caller, call_id: int) -> tuple[bytes, bytes]:
        """The ends of what a call has written to stdout and stderr by now, each after its size in eight bytes."""
        call = self.call(caller, call_id)
        with self._guard:
            board = self._boards.get(call.pool_id)
            worker = None if board is None else board.holder(call_id)
            if worker is not None:
                return worker.last_words("stdout", call_id), worker.last_words("stderr", call_id)
        return self._store.printed(call_id)

    def ended(self, pool_id: int, *, after: int, limit: int = 100) -> Sequence[Ended]:
        """Calls of the pool that ended after that number, in this order."""
        board = self._boards.get(pool_id)
        if board is not None:
            with self._guard:
                if board.ended <= after:
                    return ()
                if board.recent and board.recent[0].number <= after + 1:
                    return [one for one in board.recent if one.number > after][:limit]
        return [self._ended(call) for call in self._store.ended(pool_id, after=after, limit=limit)]

    def _ended(self, call: Call) -> Ended:
        body, stdout, stderr = self.result(call.id)
        ending = Ending(
            call_id=call.id,
            state=call.state,
            error=call.error,
            message=call.message,
            body=body,
            stdout=stdout,
            stderr=stderr,
            cached_from=call.cached_from,
        )
        return Ended(number=call.ended_number or 0, job_id=call.job_id, ending=ending)

    def result(self, call_id: int) -> tuple[Body, bytes, bytes]:
        """What a call returned or raised, pickled, and the ends of what it printed."""
        return self._store.result(call_id), *self._store.printed(call_id)

    def give_up_results(self, caller: Caller, pool_id: int, call_ids: Collection[int]) -> Collection[int]:
        """Keep large results of these calls no more, but for what calls that have not ended need; return those that went."""
        self.pool(caller, pool_id)
        with self._guard:  # no call comes meanwhile that needs one
            gone = self._store.drop_results(pool_id, call_ids)
        for body in gone.values():
            self._discard(body)
        return gone.keys()

    def asked_for(self, pool_id: int) -> None:
        """A client that follows the pool by asking again and again has asked."""
        with self._guard:
            if (board := self._boards.get(pool_id)) is not None:
                board.unfollowed_since = self._clock()

    @contextmanager
    def follow(self, pool_id: int, bell: Bell, soon: Callable[[Begun], None]) -> Iterator[Listener]:
        """Ring `bell` (any thread) when a call of the pool prints or ends, call `soon` when one begins, during the block.

        What calls that run have printed before is there, too, as far as it is kept.
        """
        listener = Listener(bell=bell, soon=soon)
        board = self._boards.get(pool_id)
        if board is not None:
            with self._guard:
                board.follow(listener)
            self.changed()  # workers are kept for it
        try:
            yield listener
        finally:
            if board is not None:
                with self._guard:
                    board.unfollow(listener, self._clock())
                    self._calls.forget_if_over(board)

    # ---- workers

    def report(self, caller: Caller, pool_id: int, *, holding: frozenset[int], endings: Sequence[Ending]) -> None:
        """A worker tells what it has finished, and what it holds. What it was given and holds not has never reached it."""
        with self._guard:
            board, worker = self._worker(caller, pool_id)
            mine = {ending.call_id: ending for ending in endings if ending.call_id in worker.calls}
            for ending in endings:
                if mine.get(ending.call_id) is not ending:  # told twice, or by an attempt that is over
                    self._discard(ending.body)
                elif ending.seconds is not None:
                    board.took(ending.call_id, ending.seconds)
            back = [one for one in worker.calls if one not in mine and one not in holding]
            unwanted = [one for one in back if worker.askers.get(one)]
            if mine or unwanted:
                self._calls.end(board, [*mine.values(), *map(cancelled, unwanted)])
            if again := {one: board.retries[one] for one in back if one not in unwanted}:
                self._calls.again(board, again)
            if mine or back:
                worker.drop([*mine, *back])

    def take(self, caller: Caller, pool_id: int, bell: Bell | None) -> Hand | None:
        """The next calls for a worker that has none; None, and `bell` will be rung, when there is none now."""
        with self._guard:
            board, worker = self._worker(caller, pool_id)
            worker.idle_since = worker.idle_since or self._clock()
            while board.waiting:
                hand = board.next_hand()
                begun = self._store.begin(hand, job_id=worker.job_id, attempt=worker.attempt or 0, now=self._clock())
                hand = [one for one in hand if one in begun]
                if not hand:
                    continue
                worker.takes(hand)
                worker.begun = None if board.borrows else hand[0]
                board.tell_begun(Begun(call_id=hand[0], job_id=worker.job_id, waits=board.borrows))
                return [self._given(board, one) for one in hand]
            closed = board.pool.closed_at is not None and not self._calls.waits.any_of(pool_id)
            idle = self._clock() - worker.idle_since
            least = board.least(self._clock())
            if may_leave(idle=idle, idle_time=board.pool.idle_time, workers=len(board.workers), least=least, closed=closed):
                self._worker_jobs.remove(board, worker.job_id)
                self._calls.forget_if_over(board)
                return []
            if bell is not None:
                board.bells.append(bell)
            return None

    def _given(self, board: Board, call_id: int) -> Given:
        kept = board.bodies.pop(call_id, None)
        return Given(
            call_id=call_id,
            function=board.functions[call_id],
            arguments=self._store.arguments(call_id) if kept is None else kept,
            time_limit=board.limits.get(call_id),
        )

    def stop_waiting(self, pool_id: int, bell: Bell) -> None:
        """The worker that gave `bell` waits no more. If it was rung for a call in this moment, another worker is."""
        with self._guard:
            board = self._boards.get(pool_id)
            if board is None:
                return
            if bell in board.bells:
                board.bells.remove(bell)
            elif board.waiting:
                board.ring_workers(1)

    def patience(self, caller: Caller, pool_id: int) -> float:
        """Seconds after which a worker that has nothing to do may leave."""
        with self._guard:
            board, worker = self._worker(caller, pool_id)
            since = self._clock() if worker.idle_since is None else worker.idle_since
            return max(0.0, since + board.pool.idle_time - self._clock())

    def printed(self, caller: Caller, pool_id: int, pieces: Sequence[Output]) -> None:
        """A worker passes on what its call prints, for those who follow it."""
        with self._guard:
            board, worker = self._found(caller, pool_id)  # words before the first call do not make it one that takes calls
            new = worker.prints(pieces)
            for listener in board.listeners:
                listener.output.extend(new)
            board.tell()

    def _found(self, caller: Caller, pool_id: int) -> tuple[Board, Worker]:
        missing = NotFound(f"There is no pool {pool_id}.")
        board = self._boards.get(pool_id)
        worker = None if board is None or caller.job_id is None else board.workers.get(caller.job_id)
        allowed(caller, Action.WORK, Resource(job=None if worker is None else worker.job_id)).check(missing)
        if board is None or worker is None:
            raise missing
        return board, worker

    def _worker(self, caller: Caller, pool_id: int) -> tuple[Board, Worker]:
        board, worker = self._found(caller, pool_id)
        if worker.attempt != caller.attempt:
            self._calls.lose(board, worker, self._jobs.get(worker.job_id))
            worker.attempt, worker.idle_since = caller.attempt, None
        board.stillborn = 0
        return board, worker

    def wake(self) -> None:
        """Ring for all who wait or follow: the lab is about to stop, and does not wait for them."""
        with self._guard:
            for board in self._boards.values():
                board.ring_workers(len(board.bells))
                for worker in board.workers.values():
                    worker.wake()
                board.tell()

    def _open_board(self, pool_id: int) -> Board:
        board = self._boards.get(pool_id)
        if board is None or board.pool.closed_at is not None:
            raise Conflict(f"Pool {pool_id} is closed, and takes no more calls.", remedy="Open another: carrel.Executor().")
        return board
