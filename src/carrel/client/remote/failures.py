"""Errors of remote cells as a notebook shows them: with the remote traceback, and without our own frames."""

from __future__ import annotations

import linecache
from bdb import BdbQuit
from collections.abc import Callable
from typing import Any

from carrel.client.executor.errors import RemoteError, RemoteTraceback
from carrel.client.remote.packing import load_parts
from carrel.core.domain.errors import CarrelError

#: Gives a file's name as the notebook says it ("Cell In[3]"), or None.
Names = Callable[[str], str | None]


def raised(outcome: dict[str, Any], names: Names, lines: list[str] | None = None) -> BaseException:
    """Return the exception of a call that failed. A notebook shows `lines` for it; None: it has been shown as it is there."""
    facts = outcome["error"]
    error: Any = None
    if outcome["exception"] is not None:
        try:
            error = load_parts(outcome["exception"])
        except BaseException:  # noqa: BLE001 - whatever a value does when it is unpickled
            error = None
    if not isinstance(error, BaseException):
        error = type(facts["name"], (RemoteError,), {})(facts["value"])
    if facts["shown"] and lines is None:
        error = type(facts["name"], (BdbQuit,), {})(facts["value"])  # of which a shell shows nothing
    trace = trace_lines(facts, names)
    error.__cause__ = RemoteTraceback("\n".join(trace))
    return plain(error, trace if lines is None else lines)


def plain(error: BaseException, lines: list[str] | None = None) -> BaseException:
    """Let IPython show these lines for the error (`_render_traceback_`), without a traceback of its own."""
    if lines is None:
        lines = [f"{type(error).__name__}: {error}"]
        if isinstance(error, CarrelError) and error.remedy and error.remedy not in lines[0]:
            lines.append(error.remedy)
    if isinstance(error, SyntaxError):  # of which IPython shows frames of this process
        found = type(type(error).__name__, (RemoteError,), {})(str(error))
        found.__cause__, error = error.__cause__, found
    shown = list(lines)
    error._render_traceback_ = lambda: shown  # type: ignore[attr-defined] # IPython asks for it
    return error


def trace_lines(facts: dict[str, Any], names: Names) -> list[str]:
    """Return the lines of a traceback, in Python's form."""
    lines: list[str] = []
    for key, words in (
        ("cause", "The above exception was the direct cause of the following exception:"),
        ("context", "During handling of the above exception, another exception occurred:"),
    ):
        if facts[key] is not None:
            lines += [*trace_lines(facts[key], names), "", words, ""]
    if facts["frames"]:
        lines.append("Traceback (most recent call last, on the worker):")
    for filename, number, function, source in facts["frames"]:
        name = names(filename)
        lines.append(f"  {name or f'File {chr(34)}{filename}{chr(34)}'}, line {number}, in {function}")
        text = source or (linecache.getline(filename, number).strip() if number else "")
        if text:
            lines.append(f"    {text}")
    return lines + "".join(facts["words"]).rstrip("\n").split("\n")
