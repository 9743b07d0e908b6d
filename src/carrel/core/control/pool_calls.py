"""What becomes of calls: they come into line, begin again when their worker is lost, and end once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from carrel.core.control.pool_board import Board, Ended, Worker
from carrel.core.control.pool_ports import CallStore
from carrel.core.control.pool_waits import Share, Waiting, Waits
from carrel.core.domain.call import INLINE, Body, Call, CallState, Ending, NewCall
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.ports import Clock


class PoolCalls:
    """The calls of all pools. Who uses it holds the lock of the pools."""

    def __init__(
        self,
        boards: dict[int, Board],
        *,
        store: CallStore,
        share: Share,
        discard: Callable[[Body], None],
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when a call came into line; `discard` removes the file of a body."""
        self._boards, self._store, self._discard, self._clock, self._changed = boards, store, discard, clock, changed
        #: Calls that wait for others.
        self.waits = Waits(store=store, share=share, begin=self._in_line, end=self._end_of, now=clock)

    def load(self, job: Callable[[int], Job | None]) -> None:
        """Take up the calls of all pools whose workers are known; `job` finds a job."""
        pending: dict[str, list[Waiting]] = {}
        lost: list[tuple[Board, Call]] = []
        for board in self._boards.values():
            owner = board.pool.owner
            calls = self._store.open_calls(board.pool.id)
            needed = self._store.dependencies([call.id for call in calls])
            for call in calls:
                expect(board, call.id, call, call.retries_left)
                if call.arguments_size > INLINE:
                    board.large.add(call.id)
                holder = board.workers.get(call.job_id or 0)
                if call.state is CallState.PENDING:
                    pending.setdefault(owner, []).append(waiting(board, call.id, tuple(needed.get(call.id, ())), call.cache))
                    continue
                self.waits.runs(call, owner)
                if holder is not None:
                    holder.attempt = call.attempt
                    holder.calls.append(call.id)
                    holder.begun = None if board.borrows else holder.calls[0]
                else:
                    lost.append((board, call))
        for calls_of_one in pending.values():
            self.waits.place(sorted(calls_of_one, key=lambda one: one.call_id))
        for board, call in lost:
            self.lost(board, call.id, job(call.job_id or 0))

    def lost(self, board: Board, call_id: int, job: Job | None, worker: Worker | None = None) -> None:
        """Its worker is gone: it begins again if it may, and has failed otherwise. `worker`: what is known of that one."""
        left = board.retries.get(call_id)
        if left is None:
            return
        if left > 0:
            self.again(board, {call_id: left - 1})
            return
        why = why_it_ended(job.id if job is not None else 0, job)
        ending = Ending(call_id=call_id, state=CallState.FAILED, error="worker_died", message=f"Its worker died: {why}")
        if worker is not None:
            stdout, stderr = (worker.last_words(name, call_id) for name in ("stdout", "stderr"))
            ending = replace(ending, stdout=stdout, stderr=stderr)
        self.end(board, [ending])

    def lose(self, board: Board, worker: Worker, job: Job | None) -> None:
        """A worker is gone with all that it had."""
        for call_id in reversed(list(worker.calls)):  # what begins again does so in the order in which it was
            self.lost(board, call_id, job, worker)
        worker.drop(list(worker.calls))

    def again(self, board: Board, retries: Mapping[int, int]) -> None:
        """These calls are the next to begin, in this order, and may begin so many times more after that."""
        self._store.again(retries)
        board.retries.update(retries)
        board.waiting.extendleft(reversed(retries))
        board.ring_workers(len(retries))

    def _in_line(self, pool_id: int, numbers: Sequence[int]) -> None:
        board = self._boards[pool_id]
        board.waiting.extend(numbers)
        board.ring_workers(len(numbers))
        if board.lacks_workers:
            self._changed()

    def _end_of(self, pool_id: int, endings: Sequence[Ending]) -> None:
        self.end(self._boards[pool_id], endings)
        self.forget_if_over(self._boards[pool_id])

    def end(self, board: Board, endings: Sequence[Ending]) -> None:
        """Write down how calls ended; those that have ended before stay as they are."""
        fresh = [one for one in endings if one.call_id in board.retries]
        numbered = {board.ended + place: one for place, one in enumerate(fresh, start=1)}
        keep = {one.call_id: body for one in fresh if (body := self.waits.kept(one)) is not None}
        for body in self._store.end(numbered, now=self._clock(), keep=keep):
            self._discard(body)
        board.ended += len(fresh)
        holders = {call_id: worker.job_id for worker in board.workers.values() for call_id in worker.calls}
        for number, one in numbered.items():
            self.waits.drop(one.call_id)
            board.forget(one.call_id)
            board.recent.append(Ended(number=number, job_id=holders.get(one.call_id), ending=one))
        board.tell()
        self.waits.ended(fresh)

    def forget_if_over(self, board: Board) -> None:
        """Keep nothing in memory of a pool that is closed and has nothing left to do, nor what its calls needed."""
        if board.pool.closed_at is not None and not board.retries and not board.workers and not board.listeners:
            self._boards.pop(board.pool.id, None)
            for body in self._store.drop_functions(board.pool.id):
                self._discard(body)


def expect(board: Board, call_id: int, call: Call | NewCall, retries: int) -> None:
    """Remember what matters of a call until it has ended."""
    board.retries[call_id], board.functions[call_id] = retries, call.function
    if call.time_limit is not None:
        board.limits[call_id] = call.time_limit


def waiting(board: Board, call_id: int, dependencies: tuple[int, ...], cache: str | None) -> Waiting:
    """Return a call of the pool as `Waits` takes it."""
    pool = board.pool
    return Waiting(call_id=call_id, pool_id=pool.id, owner=pool.owner, dependencies=dependencies, cache=cache)


def cancelled(call_id: int) -> Ending:
    """Return how a call ends that was cancelled."""
    return Ending(call_id=call_id, state=CallState.CANCELLED, error="cancelled", message="It was cancelled before it began.")


def why_it_ended(job_id: int, job: Job | None) -> str:
    """Return why a worker is gone, in words, and where more is said."""
    if job is None:
        return f"job {job_id} is not known any more."
    words = job.reason.message if job.reason is not None else ""
    # A call may end the process of its worker as if all were well (os._exit).
    is_now = "ended by itself" if job.state is JobState.COMPLETED else f"is {job.state.value}"
    return f"job {job.id} {is_now}. {words}".strip() + f" `carrel logs {job.id}` has its log."
