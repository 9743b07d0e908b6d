"""Workers of pools are jobs: they are started while calls wait, and what they had is lost when they end."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from carrel.core.control.pool_board import Board, Worker
from carrel.core.control.pool_calls import PoolCalls, why_it_ended
from carrel.core.control.pool_ports import CallStore, Workers
from carrel.core.control.ports import JobStore
from carrel.core.domain.call import CallState, Ending
from carrel.core.domain.errors import CarrelError, Unavailable
from carrel.core.domain.job import JobState
from carrel.core.domain.ports import Clock
from carrel.core.policy.pool_size import workers_missing

_log = logging.getLogger(__name__)
#: So many workers in a row may end before they ask for a call; then calls are not kept waiting for the next.
_STILLBORN = 3
#: Characters of what the last one said that are shown.
_WORDS = 4000


class PoolWorkerJobs:
    """The workers of all pools. Thread-safe but where it says otherwise."""

    def __init__(
        self,
        boards: dict[int, Board],
        guard: threading.RLock,
        calls: PoolCalls,
        *,
        store: CallStore,
        jobs: JobStore,
        workers: Workers,
        clock: Clock,
        close: Callable[[Board], None],
        changed: Callable[[], None],
    ) -> None:
        """`guard` is the lock of the pools; `close` closes a pool whose calls nobody wants any more; `changed` is called when
        there may be a worker to start."""
        self._boards, self._guard, self._calls = boards, guard, calls
        self._store, self._jobs, self._workers, self._clock = store, jobs, workers, clock
        self._close, self._changed = close, changed
        #: Pools of jobs that are workers.
        self._of_job: dict[int, int] = {}

    def load(self) -> None:
        """Take up the pools that an earlier server left, with their workers. The caller holds the lock."""
        for pool in self._store.unfinished_pools():
            board = Board(pool=pool, ended=self._store.last_ended(pool.id), unfollowed_since=self._clock())
            self._boards[pool.id] = board
            for job_id in self._store.workers(pool.id):
                job = self._jobs.get(job_id)
                if job is not None and not job.state.ended:
                    self._add(board, job_id)

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
                if worker.attempt is None:
                    board.stillborn += 1
                    if board.stillborn >= _STILLBORN:
                        self._give_up(board, why_it_ended(job_id, job) + _last_words(worker))
            elif worker.attempt is None or not (job.state is JobState.PENDING or job.attempt > worker.attempt):
                return
            self._calls.lose(board, worker, job)
            if job is None or job.state.ended:
                self.remove(board, job_id)
            self._calls.forget_if_over(board)
        self._changed()

    def _close_pools_of(self, job_id: int) -> None:
        """Nobody waits any more for the calls of a job that has ended: those that wait do not begin."""
        opened = [board for board in self._boards.values() if board.pool.parent == job_id and board.pool.closed_at is None]
        if opened and ((job := self._jobs.get(job_id)) is None or job.state.ended):
            for board in opened:
                self._close(board)

    def start_missing(self) -> bool:
        """Start the workers that pools lack. Returns False when one could not be started now, and should be tried again."""
        with self._guard:
            for board in [one for one in self._boards.values() if one.abandoned(self._clock())]:
                self._close(board)
            boards = list(self._boards.values())
        well = [self._start_for(board) for board in boards]
        return all(well)

    def _start_for(self, board: Board) -> bool:
        pool = board.pool
        while True:
            with self._guard:
                missing = workers_missing(
                    waiting=len(board.waiting),
                    running=board.running,
                    workers=len(board.workers),
                    least=board.least(self._clock()),
                    most=pool.max_workers,
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
                # The pool may have been closed and forgotten meanwhile: its worker asks, and hears that it may leave.
                self._boards.setdefault(board.pool.id, board)
                self._store.add_worker(board.pool.id, job_id)
                self._add(board, job_id)
            self.job_changed(job_id)  # it may have ended in this moment

    def _give_up(self, board: Board, why: str) -> None:
        """Nobody will carry out what waits."""
        message = f"No worker of pool {board.pool.id} can be started: {why}"
        _log.warning("%s", message)
        gone, board.waiting, board.stillborn = board.waiting, deque(), 0
        self._calls.end(
            board, [Ending(call_id=one, state=CallState.FAILED, error="workers_do_not_start", message=message) for one in gone]
        )

    def _add(self, board: Board, job_id: int) -> None:
        board.workers[job_id] = Worker(job_id=job_id)
        self._of_job[job_id] = board.pool.id

    def remove(self, board: Board, job_id: int) -> None:
        """The job is no worker any more."""
        board.workers.pop(job_id, None)
        self._of_job.pop(job_id, None)


def _last_words(worker: Worker) -> str:
    said = worker.last_words("stderr")[8:].decode("utf-8", "replace").strip()
    return f" It said last:\n{said[-_WORDS:]}" if said else ""
