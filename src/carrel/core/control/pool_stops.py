"""Calls that their owner does not want any more: one that has not begun does not begin, one that runs can be interrupted.

A call that borrows a GPU has begun when its worker says so. A worker that waits for the GPU of a call gives the call back, if it
is asked before the GPU is there; the worker alone decides which came first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Literal, TypeAlias

from carrel.core.control.pool_board import Begun, Bell, Board, Worker, nobody
from carrel.core.control.pool_calls import PoolCalls, cancelled
from carrel.core.domain.call import Call
from carrel.core.domain.user import Caller

#: What a worker is told of its call: raise KeyboardInterrupt in it; give it back, it need not begin; nothing.
Wish: TypeAlias = Literal["interrupt", "return", "none"]


class PoolStops:
    """Cancels and interrupts. Thread-safe; nothing of it is written down: who is not answered says it again."""

    def __init__(
        self,
        boards: Mapping[int, Board],
        guard: threading.RLock,
        calls: PoolCalls,
        *,
        pool: Callable[[Caller, int], object],
        call: Callable[[Caller, int], Call],
        worker: Callable[[Caller, int], tuple[Board, Worker]],
    ) -> None:
        """`guard` is the lock of the pools; `pool`, `call` and `worker` find one, and raise what keeps the caller from it."""
        self._boards, self._guard, self._calls = boards, guard, calls
        self._pool, self._call, self._worker = pool, call, worker

    # ---- its owner

    def cancel(self, caller: Caller, call_id: int, bell: Bell | None = None) -> Call | None:
        """Keep a call that waits from beginning. One that has begun goes on, one that has ended stays.

        None: a worker has it and may give it back; `bell` will be rung when that is known, and then it is asked for again.
        Without `bell`, such a call goes on.
        """
        with self._guard:
            call = self._call(caller, call_id)
            board = self._boards.get(call.pool_id)
            if board is None:
                return call
            in_line = call_id in board.retries and call_id in board.waiting
            if in_line or self._calls.waits.waits_for(call_id):
                if in_line:
                    board.waiting.remove(call_id)
                self._calls.end(board, [cancelled(call_id)])
                return self._call(caller, call_id)
            worker = board.holder(call_id)
            if bell is None or worker is None or worker.begun == call_id:
                return call
            worker.want_back(call_id, bell)
            return None

    def cancel_all(self, caller: Caller, pool_id: int, wanted: Set[int]) -> Sequence[int]:
        """Keep calls of a pool from beginning; return those that are cancelled now. What a worker has may follow them."""
        self._pool(caller, pool_id)
        with self._guard:
            board = self._boards.get(pool_id)
            if board is None:
                return []
            gone = [one for one in board.waiting if one in wanted]
            gone += [one for one in self._calls.waits.of_pool(pool_id) if one in wanted]
            board.waiting = deque(one for one in board.waiting if one not in wanted)
            self._calls.end(board, [cancelled(one) for one in gone])
            for worker in board.workers.values():
                worker.want_all_back(wanted)
            return gone

    def want_no_more(self, call: Call, bell: Bell) -> None:
        """Who gave `bell` does not ask for the call any more."""
        with self._guard:
            board = self._boards.get(call.pool_id)
            worker = None if board is None else board.holder(call.id)
            askers = [] if worker is None else worker.askers.get(call.id, [])
            if bell in askers:
                askers.remove(bell)

    def interrupt(self, caller: Caller, call_id: int) -> Call:
        """Let KeyboardInterrupt be raised in a call that runs, or waits for its GPU; one that waits in line does not begin."""
        with self._guard:
            call = self.cancel(caller, call_id) or self._call(caller, call_id)
            board = self._boards.get(call.pool_id)
            worker = None if board is None else board.holder(call_id)
            if worker is not None:
                worker.interrupted.add(call_id)
                if call_id in worker.calls[1:]:
                    worker.want_back(call_id, nobody)
                worker.ring()
        return call

    # ---- its worker

    def heard(self, caller: Caller, pool_id: int, call_id: int, bell: Bell, *, begun: bool) -> Wish | None:
        """What a worker is to do with its call; `begun`: it has its GPU. None: `bell` will be rung."""
        with self._guard:
            board, worker = self._worker(caller, pool_id)
            if call_id not in worker.calls:
                return "none"
            if begun and worker.begun != call_id:
                worker.begins(call_id)
                board.tell_begun(Begun(call_id=call_id, job_id=worker.job_id))
            if call_id in worker.interrupted:
                worker.interrupted.remove(call_id)
                return "interrupt"
            if not begun and worker.askers.get(call_id):
                return "return"
            worker.watch = bell
            return None
