"""Takes calls from the lab and carries them out, one after the other, until the lab has no need of this worker.

``python -m carrel_worker PYTHON [INITIALIZER]``: the version of the caller's Python, and the digest of a function with its
arguments that is called once before the first call.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Any

from carrel_worker import capture, pickling
from carrel_worker.connection import Lab, Over, first_frame, note
from carrel_worker.frames import encode, head
from carrel_worker.live import Live

#: Unpickled functions that are remembered.
_FUNCTIONS = 128


class Worker:
    """One worker."""

    def __init__(self, pool: str) -> None:
        self._pool = "/pools/" + pool
        self._lab = Lab()
        self._functions: dict[str, Any] = {}
        self._live = Live(pool)
        self._streams = [capture.Stream("stdout", 1, self._live.told), capture.Stream("stderr", 2, self._live.told)]
        self._leaving = False
        self._call: int | None = None
        signal.signal(signal.SIGTERM, self._leave)

    def _leave(self, *_: Any) -> None:
        # A call that runs has the time that the lab gives it; between two calls nothing is left to do.
        self._leaving = True
        if self._call is None:
            raise SystemExit(0)

    def initialize(self, digest: str) -> None:
        """Call the initializer of the pool."""
        function, args = pickling.load(self._lab.ask("GET", self._pool + "/functions/" + digest))
        function(*args)

    def run(self) -> int:
        """Work until there is nothing to do."""
        parts: list[Any] = []
        try:
            while not self._leaving:
                header, body = first_frame(self._lab.ask("POST", self._pool + "/work", _request(parts)))
                if header["type"] == "retire":
                    return 0
                parts, self._call = [], None
                if header["type"] == "call":
                    self._call = header["call"]
                    parts = self._carry_out(header, bytearray(body))
        except SystemExit:
            parts = []  # a call that was given in this moment has not begun
        self._call = 0  # nothing interrupts this
        Lab().ask("POST", self._pool + "/work?take=false", _request(parts))
        return 0

    def _carry_out(self, header: dict[str, Any], arguments: bytearray) -> list[Any]:
        """Return the frames that tell how the call ended."""
        self._live.start(header["call"])
        for stream in self._streams:
            stream.start()
        ending: dict[str, Any] = {"type": "ended", "call": header["call"], "state": "COMPLETED"}
        try:
            function = self._function(header["function"])
            args, kwargs = pickling.load(arguments)
            result = function(*args, **kwargs)
        except BaseException as error:
            value, ending["state"], ending["error"] = _raised(error), "FAILED", "exception"
            ending["message"] = _words(error)
        else:
            value = result
        try:
            parts = pickling.dump(value)
        except BaseException as error:
            text = "What the call {} cannot be pickled: {}".format("raised" if "error" in ending else "returned", _words(error))
            ending.update(state="FAILED", error="not_picklable", message=text)
            parts = _why_not(error, text)
        self._live.finish()
        capture.flush()
        printed = [encode({"type": stream.name}, data) for stream in self._streams if (data := stream.finish())]
        return [*printed, head(ending, pickling.size_of(parts)), *parts]

    def _function(self, digest: str) -> Any:
        if digest not in self._functions:
            if len(self._functions) >= _FUNCTIONS:
                self._functions.pop(next(iter(self._functions)))
            self._functions[digest] = pickling.load(self._lab.ask("GET", self._pool + "/functions/" + digest))
        return self._functions[digest]


def _request(endings: list[Any]) -> list[Any]:
    # It holds nothing but what it tells the end of.
    return [encode({"type": "holding", "calls": []}), *endings]


def _why_not(error: BaseException, text: str) -> list[Any]:
    """What is sent instead of a value that cannot be pickled: why, as it was raised if that can be pickled."""
    trace = traceback.format_exc()
    if hasattr(error, "add_note"):
        error.add_note(text.partition(":")[0] + ".")
    try:
        return pickling.dump((error.with_traceback(None), trace))
    except BaseException:
        return pickling.dump((RuntimeError(text), trace))


def _raised(error: BaseException) -> tuple[BaseException, str]:
    """The exception without the frames of this program, and its traceback as text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, pickling.__file__):
        trace = trace.tb_next
    return error.with_traceback(None), "".join(traceback.format_exception(type(error), error, trace))


def _words(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()[:4000]


def main() -> int:
    """Run a worker."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(1, os.path.join(here, "modules"))
    own = "{}.{}".format(*sys.version_info[:2])
    if own != sys.argv[1]:
        note(f"this is Python {own}, and the calls come from Python {sys.argv[1]}: they would not be understood.")
        return 1
    # Programs that calls start, and code that pickles by reference, see the program as what it is.
    worker = Worker(os.environ["CARREL_POOL"])
    try:
        if len(sys.argv) > 2:
            worker.initialize(sys.argv[2])
        return worker.run()
    except Over as reason:
        note(f"this worker ends: {reason}")
        return 0


if __name__ == "__main__":
    sys.exit(main())
