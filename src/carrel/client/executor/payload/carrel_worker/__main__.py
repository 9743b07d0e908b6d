"""Takes calls from the lab and carries them out, one after the other, until the lab has no need of this worker.

``python -m carrel_worker PYTHON [INITIALIZER]``: the version of the caller's Python, and the digest of a function with its
arguments that is called once before the first call.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

from carrel_worker import display, pickling, processes, supervisor  # noqa: F401 - processes: see there
from carrel_worker.bodies import Bodies, Values, as_frames
from carrel_worker.capture import Output, flush, over_limit
from carrel_worker.connection import Lab, Over, Refused, note
from carrel_worker.failures import failure_of, words_of
from carrel_worker.hand import Hand
from carrel_worker.interrupts import Interrupts, Late
from carrel_worker.leases import Leases, NotWanted, StateLost

#: Unpickled functions that are remembered.
_FUNCTIONS = 128
#: Bytes of a result that waits for the ends of the next calls.
_SMALL = 32 * 1024
#: The signals that the thread which forks had blocked before.
_HELD = threading.local()


class Worker:
    """One worker."""

    def __init__(self, pool: str, output: Output) -> None:
        self._pid = os.getpid()
        self._directory = os.getcwd()
        self._pool = "/pools/" + pool
        self._lab = Lab()
        self._bodies = Bodies(self._lab, self._pool)
        self._hand = Hand(self._pool)
        self._functions: dict[str, Any] = {}
        self._values = Values(self._bodies)
        self._output = output
        self._interrupts = Interrupts(pool, self._hand.keep_one)
        self._leases = Leases(pool)
        display.send, display.flush = output.show, output.flush
        self._leaving = False
        #: None: nothing has begun that an end would cut off.
        self._call: int | None = None
        signal.signal(signal.SIGTERM, self._leave)
        # A process that a call forks ends at SIGTERM like any other, also at its first moment: pools of processes wait for that.
        os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals, after_in_child=_as_any_process)

    def _leave(self, *_: Any) -> None:
        # A call that runs has the time that the lab gives it; between two calls nothing is left to do.
        first, self._leaving = not self._leaving, True
        if first and self._call is None:
            raise SystemExit(0)

    def initialize(self, digest: str) -> None:
        """Call the initializer of the pool."""
        body = self._lab.ask("GET", self._pool + "/functions/" + digest)
        with self._leases.during("initializer"):
            function, args = pickling.load(body)
            function(*args)

    def run(self) -> int:
        """Work until there is nothing to do."""
        ends: list[list[Any]] = []
        try:
            while not self._leaving:
                given = self._bodies.next_calls(ends)
                kind = given[0][0]["type"]
                if kind == "retire":
                    return 0
                self._hand.take(given if kind == "call" else [])
                ends, self._call = [], None
                del given  # they may be large
                self._carry_out_all()
                ends = self._hand.give_back()
        except SystemExit:
            ends = []  # a call that was given in this moment, or waits for a GPU, has not begun
        self._call = 0  # nothing interrupts this
        Bodies(Lab(), self._pool).tell(ends, [])
        return 0

    def _carry_out_all(self) -> None:
        """Carry out what is at hand, for a moment; the lab gives again what is left."""
        first, small = True, True
        while small and not self._leaving and (call := self._hand.next()) is not None:
            told = self._with_gpu(*call, first=first)
            first, small = False, not told or told[3]
            if told:
                self._hand.ended(told[:3])

    def _with_gpu(self, header: dict[str, Any], arguments: Any, *, first: bool) -> list[Any]:
        """Carry the call out once it has a GPU, if calls borrow theirs here; return what `Bodies` is to tell of its end.

        That is nothing where it was given back: what a worker does not hold, and does not tell the end of, has not begun.
        """
        refused: BaseException | None = None
        call: int = header["call"]
        with self._leases.asked("call {}".format(call)) as lease, self._interrupts.watched(call, lease.want_no_more):
            try:
                with self._interrupts.during(call):
                    lease.wait()
            except NotWanted:
                return []
            except StateLost as reason:
                note(f"this worker ends: {reason}")
                raise SystemExit(0) from None
            except (Exception, KeyboardInterrupt) as error:
                refused = error
            self._call = call
            self._interrupts.begun()
            lease.begin()
            parts, lease.failed = self._carry_out(header, arguments, refused, first=first)
        return parts

    def _carry_out(
        self, header: dict[str, Any], arguments: Any, refused: BaseException | None, *, first: bool
    ) -> tuple[list[Any], str]:
        """Return what is to be told of the call's end, and the name of what it raised. `refused`: why it cannot begin.

        `first`: no end of a call before it is untold.
        """
        limit, began = header.get("time_limit"), time.monotonic()
        until = began + (limit or math.inf)
        self._output.start(header["call"], limit, first=first)
        ending: dict[str, Any] = {"type": "ended", "call": header["call"], "state": "COMPLETED"}
        failed = ""
        try:
            if refused is not None:
                raise refused
            function, args, kwargs = self._read(header["function"], arguments)
            with self._interrupts.during(header["call"], until):
                result = function(*args, **kwargs)
                if inspect.iscoroutine(result):
                    result = asyncio.run(result)
        except BaseException as error:
            if os.getpid() != self._pid:
                _end_fork(error)
            failed = type(error).__name__
            ending.update(state="FAILED", error="exception", message=words_of(error)[:4000])
            if isinstance(error, Late):
                ending["error"] = "time_limit"
            parts = pickling.dump(failure_of(error))
        else:
            if os.getpid() != self._pid:
                _end_fork(None)
            parts = _returned(result, ending)
        ending["seconds"] = time.monotonic() - began
        late = ending.get("error") == "time_limit"
        # What is small waits for the ends of the calls behind it, and outlives this process meanwhile.
        waits = not late and self._hand.more and pickling.size_of(parts) <= _SMALL
        printed = self._output.finish(as_frames([b"", ending, parts]) if waits else b"")
        if late:
            ending["message"] = over_limit(limit, printed)
        self._tidy_up()
        return [printed, ending, parts, waits and len(printed) <= _SMALL], failed

    def _read(self, function: str, arguments: Any) -> tuple[Any, Any, Any]:
        """The function with its arguments. `BrokenProcessPool`, as a pool of processes has it: they would end this process."""
        try:
            return (self._function(function), *pickling.load(arguments, self._results()))
        except SystemExit as error:
            from concurrent.futures.process import BrokenProcessPool

            text = "The function or its arguments would end the worker that unpickles them: {!r}."
            raise BrokenProcessPool(text.format(error)) from error

    def _tidy_up(self) -> None:
        """Take back what a call has changed of the process that the next one, and the worker itself, count on."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, self._leave)
        self._interrupts.listen()
        with contextlib.suppress(OSError):  # it was removed
            os.chdir(self._directory)

    def _results(self) -> Any:
        """What gives the results of calls that arguments name; the same one for the same call."""
        known: dict[int, Any] = {}

        def result_of(call: Any) -> Any:
            if isinstance(call, str):
                return self._values.of(call)
            if call not in known:
                try:
                    known[call] = pickling.load(self._bodies.result(call))
                except Over as reason:
                    raise RuntimeError("The result of call {} cannot be fetched: {}".format(call, reason)) from None
            return known[call]

        return result_of

    def _function(self, digest: str) -> Any:
        if digest not in self._functions:
            if len(self._functions) >= _FUNCTIONS:
                self._functions.pop(next(iter(self._functions)))
            self._functions[digest] = pickling.load(self._lab.ask("GET", self._pool + "/functions/" + digest))
        return self._functions[digest]


def _end_fork(error: BaseException | None) -> NoReturn:
    """End a process that the function has forked, and that has come back from it: the call goes on in the other one."""
    if error is not None and not isinstance(error, SystemExit):
        traceback.print_exception(type(error), error, error.__traceback__)
    code = error.code if isinstance(error, SystemExit) else error and 1
    flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _hold_signals() -> None:
    _HELD.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


def _let_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _HELD.before)


def _as_any_process() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _let_signals()


def _returned(result: Any, ending: dict[str, Any]) -> list[Any]:
    """What is sent of a result: itself, or why it cannot be pickled."""
    try:
        return pickling.dump(result)
    except BaseException as error:
        text = "What the call returned cannot be pickled"
        ending.update(state="FAILED", error="not_picklable", message="{}: {}".format(text, words_of(error))[:4000])
        if hasattr(error, "add_note"):
            error.add_note(text + ".")
        return pickling.dump(failure_of(error))


def main() -> int:
    """Run a worker."""
    pool = os.environ["CARREL_POOL"]
    output = supervisor.begin(pool)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(1, os.path.join(here, "modules"))
    own = "{}.{}".format(*sys.version_info[:2])
    if own != sys.argv[1]:
        note(f"this is Python {own}, and the calls come from Python {sys.argv[1]}: they would not be understood.")
        return 1
    # Programs that calls start, and code that pickles by reference, see the program as what it is.
    worker = Worker(pool, output)
    try:
        if len(sys.argv) > 2:
            worker.initialize(sys.argv[2])
        output.finish()
        status = worker.run()
        output.over()
        return status
    except Over as reason:
        note(f"this worker ends: {reason}")
        return int(isinstance(reason, Refused))


if __name__ == "__main__":
    sys.exit(main())
