"""Exceptions on their way to the caller."""

from __future__ import annotations

import contextlib
import os
import traceback
from typing import Any

from carrel_worker import pickling

_HERE = os.path.dirname(os.path.abspath(__file__))


def failure_of(error: BaseException) -> dict[str, Any]:
    """An exception as it travels: as plain text, which arrives in any case, and pickled, which not every one can be."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    said = "".join(traceback.format_exception(type(error), error, trace))
    name = "{0.__module__}.{0.__qualname__}".format(type(error))
    failure = {"type": name, "words": words_of(error), "trace": said, "exception": None}
    with contextlib.suppress(BaseException):
        failure["exception"] = b"".join(pickling.dump(error.with_traceback(None)))
    return failure


def words_of(error: BaseException) -> str:
    """What Python says of it in one line, or as many as it has."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def value_of(error: BaseException) -> str:
    """What it says of itself, if it can."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


def _is_ours(file: str) -> bool:
    return file == pickling.__file__ or os.path.dirname(os.path.abspath(file)) == _HERE
