"""What can go wrong with a call, beside what its function raises."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import re
import sys
import traceback
from concurrent.futures.process import BrokenProcessPool
from typing import Any, cast

from carrel.client.executor import pickling

#: What comes before the name of a file (blanks, and the bars of a group), the name, and the number of the line.
_FRAME = re.compile(r'([\s|+-]*)File "([^"]+)", line (\d+), in ')


class WorkerDied(BrokenProcessPool):
    """The worker ended before the call did: it was killed, ran out of memory, or reached its walltime.

    The call may have done a part of its work. With `retries` it begins again.
    """


class WorkersDoNotStart(BrokenProcessPool):
    """No worker came to where it takes calls; the message says why, and which job's log has more."""


class DependencyFailed(Exception):
    """A call whose result was an argument failed or was cancelled, so this one did not begin; the message names it.

    The cause is what that call raised.
    """


class CallTimeout(TimeoutError):
    """The call took longer than its `call_time`, and was stopped; the message has what it printed last.

    The cause is where it was, if Python could tell.
    """


class RemoteError(RuntimeError):
    """An exception of a call that cannot be had here: its class is not installed, or it cannot be pickled.

    The message has its type and its words; the cause is its traceback.
    """


class RemoteTraceback(Exception):
    """The cause of an exception that a call raised: where that was."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def raised(failure: dict[str, Any]) -> BaseException:
    """Return the exception of a call that failed, as `carrel_worker` tells it; its cause is the traceback."""
    error: Any = None
    if failure["exception"] is not None:
        with contextlib.suppress(BaseException):  # whatever a value does when it is unpickled
            error = pickling.load(failure["exception"])
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    if not isinstance(error, BaseException) or name != failure["type"]:
        error = RemoteError(failure["words"])
    elif _plain("".join(traceback.format_exception_only(error)).strip()) != _plain(failure["words"]):
        add_note(error, f"On the worker it was: {failure['words']}")
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing in sys.modules:
        add_note(
            error,
            f'"{missing}" is imported here, and the workers do not have it: they have the modules and packages of the moment in '
            "which the executor was made. Import it before that, or name it in modules= or requirements=.",
        )
    # As `raise … from …` does it, also where the class lets no attribute be set.
    vars(BaseException)["__cause__"].__set__(error, RemoteTraceback(_with_lines(failure["trace"])))
    return cast("BaseException", error)


def _plain(words: str) -> str:
    """Words without addresses of objects, which differ in each process."""
    return re.sub(r"0x[0-9a-fA-F]+", "0x", words)


def add_note(error: BaseException, note: str) -> None:
    """Say something below the words of an exception, where its class allows that."""
    with contextlib.suppress(Exception):
        error.add_note(note)


def _with_lines(trace: str) -> str:
    """A traceback with the lines of the caller's own files, which the worker does not have."""
    lines = trace.split("\n")
    found = []
    for line, following in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        found.append(line)
        frame = _FRAME.match(line)
        if frame is not None and not following.startswith(f"{frame[1]}  "):
            source = linecache.getline(frame[2], int(frame[3])).strip()
            found += [f"{frame[1]}  {source}"] if source else []
    return "\n".join(found)
