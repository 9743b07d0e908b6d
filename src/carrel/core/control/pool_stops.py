"""Calls that their owner does not want any more: one that has not begun does not begin, one that runs can be interrupted.

A call that borrows a GPU has begun when its worker says so. A worker that waits for the GPU of a call gives the call back, if it
is asked before the GPU is there; the worker alone decides which came first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from carrel.core.control.pool_board import Begun, Bell, Board, Worker
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
        call: Callable[[Caller, int], Call],
        worker: Callable[[Caller, int], tuple[Board, Worker]],
    ) -> None:
        """`guard` is the lock of the pools; `call` and `worker` find one, and raise what keeps the caller from it."""
        self._boards, self._guard, self._calls = boards, guard, calls
        self._call, self._worker = call, worker

    # ---- its owner

    def cancel(self, caller: Caller, call_id: int, bell: Bell | None = None) -> Call | None:
        """Keep a call that waits from beginning. One that has begun goes on, one that has ended stays.

        None: a worker has it and is asked to give it back; `bell` will be rung, and then it is asked for again. Without `bell`,
        such a call goes on.
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
            worker.want_back(bell)
            return None

    def want_no_more(self, call: Call, bell: Bell) -> None:
        """Who gave `bell` does not ask for the call any more."""
        with self._guard:
            board = self._boards.get(call.pool_id)
            worker = None if board is None else board.holder(call.id)
            if worker is not None and bell in worker.askers:
                worker.askers.remove(bell)

    def interrupt(self, caller: Caller, call_id: int) -> Call:
        """Let KeyboardInterrupt be raised in a call that runs, or waits for its GPU; one that waits in line does not begin."""
        with self._guard:
            call = self.cancel(caller, call_id) or self._call(caller, call_id)
            board = self._boards.get(call.pool_id)
            worker = None if board is None else board.holder(call_id)
            if worker is not None:
                worker.interrupted = call_id
                worker.ring()
        return call

    # ---- its worker

    def heard(self, caller: Caller, pool_id: int, call_id: int, bell: Bell, *, begun: bool) -> Wish | None:
        """What a worker is to do with its call; `begun`: it has its GPU. None: `bell` will be rung."""
        with self._guard:
            board, worker = self._worker(caller, pool_id)
            if worker.call != call_id:
                return "none"
            if begun and worker.begun != call_id:
                worker.begins(call_id)
                board.tell_begun(Begun(call_id=call_id, job_id=worker.job_id))
            if worker.interrupted == call_id:
                worker.interrupted = None
                return "interrupt"
            if not begun and worker.askers:
                return "return"
            worker.watch = bell
            return None
