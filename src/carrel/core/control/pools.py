"""Pools of workers: calls go in, workers take them, endings come out. A call begins once, unless it asks for more.

A call that is given to a worker is written down as its first, so that it cannot begin a second time by accident: neither when the
lab is killed nor when an answer is lost. A worker says with each request which calls it holds; one that it was given and does not
know of has not begun, and waits again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from carrel.core.control.pool_board import BODIES, Bell, Board, Ended, Listener, Output, Worker
from carrel.core.control.pool_ports import CallStore, Workers
from carrel.core.control.ports import JobStore
from carrel.core.domain.call import Body, Call, CallState, Ending, NewCall, WorkerPool, WorkerPoolSpec
from carrel.core.domain.errors import CarrelError, Conflict, NotFound, Unavailable
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.ports import Clock
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed
from carrel.core.policy.pool_size import may_leave, workers_missing

_log = logging.getLogger(__name__)
#: So many workers in a row may end before they ask for a call; then calls are not kept waiting for the next.
_STILLBORN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a worker is answered: a call with its arguments, or that it is not needed any more."""

    call_id: int | None = None
    #: Digest.
    function: str = ""
    arguments: Body | None = None
    retire: bool = False


class Pools:
    """All pools of a lab. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    def __init__(
        self, *, store: CallStore, jobs: JobStore, workers: Workers, clock: Clock, discard: Callable[[Body], None]
    ) -> None:
        """`discard` removes the file of a body that nobody needs."""
        self._store = store
        self._jobs = jobs
        self._workers = workers
        self._clock = clock
        self._discard = discard
        self._guard = threading.RLock()
        self._boards: dict[int, Board] = {}
        self._of_job: dict[int, int] = {}
        #: Wakes `carrel.core.control.pool_loop`, which looks after the number of workers.
        self.changed: Bell = lambda: None

    def load(self) -> None:
        """Take up what an earlier server left."""
        with self._guard:
            for pool in self._store.unfinished_pools():
                board = self._boards[pool.id] = Board(pool=pool, ended=self._store.last_ended(pool.id))
                for job_id in self._store.workers(pool.id):
                    job = self._jobs.get(job_id)
                    if job is not None and not job.state.ended:
                        self._add_worker(board, job_id)
                lost = []
                for call in self._store.open_calls(pool.id):
                    board.retries[call.id], board.functions[call.id] = call.retries_left, call.function
                    holder = board.workers.get(call.job_id or 0)
                    if call.state is CallState.PENDING:
                        board.waiting.append(call.id)
                    elif holder is not None:
                        holder.call, holder.attempt = call.id, call.attempt
                    else:
                        lost.append(call)
                for call in lost:
                    self._lost(board, call.id, self._jobs.get(call.job_id or 0))

    # ---- pools

    def open(self, caller: Caller, spec: WorkerPoolSpec) -> WorkerPool:
        """Make a pool. A worker of it could be submitted: otherwise that is said now."""
        allowed(caller, Action.SUBMIT).check()
        self._workers.check(caller, spec)
        with self._guard:
            pool = self._store.add_pool(caller.user.subject, spec, parent=caller.job_id, now=self._clock())
            self._boards[pool.id] = Board(pool=pool)
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

    def _close(self, board: Board, *, cancel: bool) -> None:
        now = self._clock()
        self._store.close_pool(board.pool.id, now=now)
        board.pool = replace(board.pool, closed_at=board.pool.closed_at or now)
        if cancel:
            self._end(board, [_cancelled(call_id) for call_id in board.waiting])
            board.waiting.clear()
        board.ring_workers(len(board.bells))
        self._forget_if_over(board)

    # ---- calls

    def add_function(self, caller: Caller, pool_id: int, digest: str, body: Body) -> None:
        """Keep a function for calls of it."""
        self.pool(caller, pool_id)
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
        self.pool(caller, pool_id)
        for digest in {call.function for call in new}:
            if self._store.function(pool_id, digest) is None:
                raise NotFound(f"Pool {pool_id} has no function {digest[:80]}.", remedy="Send it before calls of it.")
        with self._guard:
            board = self._open_board(pool_id)
            numbers = self._store.add_calls(pool_id, new, now=self._clock())
            fresh = [number for number, is_new in numbers if is_new]
            known = {number for number, is_new in numbers if not is_new}
            for call, (number, _) in zip(new, numbers, strict=True):
                if number in known:
                    self._discard(call.body)
                else:
                    board.retries[number], board.functions[number] = call.retries, call.function
                    if call.body.data is not None and len(board.bodies) < BODIES:
                        board.bodies[number] = call.body
            board.waiting.extend(fresh)
            board.ring_workers(len(fresh))
        self.changed()
        return [number for number, _ in numbers]

    def cancel(self, caller: Caller, call_id: int) -> Call:
        """Keep a call that waits from beginning. One that has begun goes on, one that has ended stays."""
        call = self.call(caller, call_id)
        with self._guard:
            board = self._boards.get(call.pool_id)
            if board is not None and call_id in board.retries and call_id in board.waiting:
                board.waiting.remove(call_id)
                self._end(board, [_cancelled(call_id)])
        return self.call(caller, call_id)

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

    def calls(self, caller: Caller, pool_id: int, *, before: int | None = None, limit: int = 100) -> Sequence[Call]:
        """Calls of a pool, newest first."""
        self.pool(caller, pool_id)
        return self._store.list(pool_id, before=before, limit=limit)

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
        )
        return Ended(number=call.ended_number or 0, job_id=call.job_id, ending=ending)

    def result(self, call_id: int) -> tuple[Body, bytes, bytes]:
        """What a call returned or raised, pickled, and the ends of what it printed."""
        return self._store.result(call_id), *self._store.printed(call_id)

    @contextmanager
    def follow(self, pool_id: int, bell: Bell) -> Iterator[Listener]:
        """Ring `bell` (any thread) when a call of the pool begins, prints or ends, during the block."""
        listener = Listener(bell=bell)
        board = self._boards.get(pool_id)
        if board is not None:
            with self._guard:
                board.listeners.add(listener)
        try:
            yield listener
        finally:
            if board is not None:
                with self._guard:
                    board.listeners.discard(listener)

    # ---- workers

    def report(self, caller: Caller, pool_id: int, *, holding: frozenset[int], endings: Sequence[Ending]) -> None:
        """A worker tells what it has finished, and what it holds. What it was given and holds not has never reached it."""
        with self._guard:
            board, worker = self._worker(caller, pool_id)
            mine = [ending for ending in endings if ending.call_id == worker.call]
            for ending in endings:
                if ending.call_id != worker.call:  # told twice, or by an attempt that is over
                    self._discard(ending.body)
            if mine:
                self._end(board, mine)
                worker.call = None
            elif worker.call is not None and worker.call not in holding:
                self._again(board, worker.call, board.retries[worker.call])
                worker.call = None

    def take(self, caller: Caller, pool_id: int, bell: Bell | None) -> Given | None:
        """The next call for a worker that has none; None, and `bell` will be rung, when there is none now."""
        with self._guard:
            board, worker = self._worker(caller, pool_id)
            worker.idle_since = worker.idle_since or self._clock()
            while board.waiting:
                call_id = board.waiting.popleft()
                if not self._store.begin(call_id, job_id=worker.job_id, attempt=worker.attempt or 0, now=self._clock()):
                    continue
                worker.call, worker.idle_since = call_id, None
                body = board.bodies.pop(call_id, None) or self._store.arguments(call_id)
                for listener in board.listeners:
                    listener.begun.append((call_id, worker.job_id))
                board.tell()
                return Given(call_id=call_id, function=board.functions[call_id], arguments=body)
            closed = board.pool.closed_at is not None
            idle = self._clock() - worker.idle_since
            spec = board.pool.spec
            if may_leave(idle=idle, idle_time=spec.idle_time, workers=len(board.workers), least=spec.min_workers, closed=closed):
                self._remove_worker(board, worker.job_id)
                self._forget_if_over(board)
                return Given(retire=True)
            if bell is not None:
                board.bells.append(bell)
            return None

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
            return max(0.0, since + board.pool.spec.idle_time - self._clock())

    def printed(self, caller: Caller, pool_id: int, pieces: Sequence[Output]) -> None:
        """A worker passes on what its call prints, for those who follow it now."""
        with self._guard:
            board, worker = self._worker(caller, pool_id)
            for listener in board.listeners:
                listener.output.extend(piece for piece in pieces if piece.call_id == worker.call)
            board.tell()

    def _worker(self, caller: Caller, pool_id: int) -> tuple[Board, Worker]:
        missing = NotFound(f"There is no pool {pool_id}.")
        board = self._boards.get(pool_id)
        worker = None if board is None or caller.job_id is None else board.workers.get(caller.job_id)
        allowed(caller, Action.WORK, Resource(job=None if worker is None else worker.job_id)).check(missing)
        if board is None or worker is None:
            raise missing
        if worker.attempt != caller.attempt:
            if worker.call is not None:
                self._lost(board, worker.call, self._jobs.get(worker.job_id))
            worker.attempt, worker.call, worker.idle_since = caller.attempt, None, None
        board.stillborn = 0
        return board, worker

    def wake(self) -> None:
        """Ring for all who wait or follow: the lab is about to stop, and does not wait for them."""
        with self._guard:
            for board in self._boards.values():
                board.ring_workers(len(board.bells))
                board.tell()

    # ---- the number of workers

    def jobs(self) -> Sequence[int]:
        """Jobs whose ends matter: workers, and those that opened a pool."""
        with self._guard:
            opened = [board.pool.parent for board in self._boards.values() if board.pool.parent is not None]
            return [*self._of_job, *opened]

    def job_changed(self, job_id: int) -> None:
        """Something happened to a job: if it is a worker and runs no more, its call is lost; so are pools that it opened."""
        with self._guard:
            self._close_pools_of(job_id)
            pool_id = self._of_job.get(job_id)
            board = self._boards.get(pool_id or 0)
            worker = None if board is None else board.workers.get(job_id)
            if board is None or worker is None:
                return
            job = self._jobs.get(job_id)
            if job is None or job.state.ended:
                self._remove_worker(board, job_id)
                if worker.attempt is None:
                    board.stillborn += 1
                    if board.stillborn >= _STILLBORN:
                        self._give_up(board, _why_it_ended(job_id, job))
            elif worker.attempt is None or not (job.state is JobState.PENDING or job.attempt > worker.attempt):
                return
            if worker.call is not None:
                self._lost(board, worker.call, job)
                worker.call = None
            self._forget_if_over(board)
        self.changed()

    def _close_pools_of(self, job_id: int) -> None:
        """Nobody waits any more for the calls of a job that has ended: those that wait do not begin."""
        opened = [board for board in self._boards.values() if board.pool.parent == job_id and board.pool.closed_at is None]
        if opened and ((job := self._jobs.get(job_id)) is None or job.state.ended):
            for board in opened:
                self._close(board, cancel=True)

    def start_missing(self) -> bool:
        """Start the workers that pools lack. Returns False when one could not be started now, and should be tried again."""
        with self._guard:
            boards = list(self._boards.values())
        well = [self._start_for(board) for board in boards]
        return all(well)

    def _start_for(self, board: Board) -> bool:
        spec = board.pool.spec
        while True:
            with self._guard:
                least = spec.min_workers if board.pool.closed_at is None else 0
                missing = workers_missing(
                    waiting=len(board.waiting),
                    running=board.running,
                    workers=len(board.workers),
                    least=least,
                    most=spec.max_workers,
                )
                if not missing or board.pool.id not in self._boards:
                    return True
                board.started += 1
                key = f"pool-{board.pool.id}-{board.started}-{self._clock()}"
            try:
                job_id = self._workers.start(board.pool, key)
            except Unavailable as error:
                board.trouble = str(error)
                return False
            except CarrelError as error:
                with self._guard:
                    self._give_up(board, str(error))
                return True
            with self._guard:
                board.trouble = ""
                self._store.add_worker(board.pool.id, job_id)
                self._add_worker(board, job_id)
            self.job_changed(job_id)  # it may have ended in this moment

    def _give_up(self, board: Board, why: str) -> None:
        """Nobody will carry out what waits."""
        message = f"No worker of pool {board.pool.id} can be started: {why}"
        _log.warning("%s", message)
        self._end(
            board,
            [Ending(call_id=one, state=CallState.FAILED, error="workers_do_not_start", message=message) for one in board.waiting],
        )
        board.waiting.clear()
        board.stillborn = 0

    def _add_worker(self, board: Board, job_id: int) -> None:
        board.workers[job_id] = Worker(job_id=job_id)
        self._of_job[job_id] = board.pool.id

    def _remove_worker(self, board: Board, job_id: int) -> None:
        board.workers.pop(job_id, None)
        self._of_job.pop(job_id, None)

    def _forget_if_over(self, board: Board) -> None:
        if board.pool.closed_at is not None and not board.retries and not board.workers and not board.listeners:
            self._boards.pop(board.pool.id, None)

    # ---- what becomes of calls

    def _open_board(self, pool_id: int) -> Board:
        board = self._boards.get(pool_id)
        if board is None or board.pool.closed_at is not None:
            raise Conflict(f"Pool {pool_id} is closed, and takes no more calls.", remedy="Open another: carrel.Executor().")
        return board

    def _lost(self, board: Board, call_id: int, job: Job | None) -> None:
        left = board.retries.get(call_id)
        if left is None:
            return
        if left > 0:
            self._again(board, call_id, left - 1)
            return
        why = _why_it_ended(job.id if job is not None else 0, job)
        ending = Ending(call_id=call_id, state=CallState.FAILED, error="worker_died", message=f"Its worker died: {why}")
        self._end(board, [ending])

    def _again(self, board: Board, call_id: int, retries: int) -> None:
        self._store.again({call_id: retries})
        board.retries[call_id] = retries
        board.waiting.appendleft(call_id)
        board.ring_workers(1)

    def _end(self, board: Board, endings: Sequence[Ending]) -> None:
        fresh = [one for one in endings if one.call_id in board.retries]
        numbered = {board.ended + place: one for place, one in enumerate(fresh, start=1)}
        self._store.end(numbered, now=self._clock())
        board.ended += len(fresh)
        holders = {worker.call: worker.job_id for worker in board.workers.values()}
        for number, one in numbered.items():
            del board.retries[one.call_id]
            board.functions.pop(one.call_id, None)
            board.bodies.pop(one.call_id, None)
            board.recent.append(Ended(number=number, job_id=holders.get(one.call_id), ending=one))
        board.tell()


def _cancelled(call_id: int) -> Ending:
    return Ending(call_id=call_id, state=CallState.CANCELLED, error="cancelled", message="It was cancelled before it began.")


def _why_it_ended(job_id: int, job: Job | None) -> str:
    if job is None:
        return f"job {job_id} is not known any more."
    words = job.reason.message if job.reason is not None else ""
    return f"job {job.id} is {job.state.value}. {words}".strip() + f" `carrel logs {job.id}` has its log."
