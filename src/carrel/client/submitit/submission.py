"""A call that is carried out later. A job loads it, too: standard library only, and cloudpickle, which travels with the job."""

from __future__ import annotations

import importlib
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carrel.client.submitit.errors import UncompletedJobError


class DelayedSubmission:
    """A function with its arguments. `checkpoint` methods return one: how the job goes on."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self._done = False
        self._result: Any = None

    def result(self) -> Any:
        """What the function returns; it is called once."""
        if not self._done:
            self._result = self.function(*self.args, **self.kwargs)
            self._done = True
        return self._result

    def done(self) -> bool:
        """Whether the function has been called."""
        return self._done

    def dump(self, filepath: str | Path) -> None:
        """Write this to a file. The file is there whole, or not at all."""
        write_pickle(self, Path(filepath))

    @classmethod
    def load(cls, filepath: str | Path) -> DelayedSubmission:
        """Read what `dump` has written. Raises `TypeError` for another object."""
        found = read_pickle(filepath)
        if not isinstance(found, cls):
            raise TypeError(f"{filepath} holds a {type(found).__name__}, and no DelayedSubmission.")
        return found

    def checkpoint(self) -> DelayedSubmission | None:
        """Ask the function how to go on. None: it does not want to."""
        method = checkpoint_method(self.function)
        if method is None:
            return self
        found = method(*self.args, **self.kwargs)
        if found is None or isinstance(found, DelayedSubmission):
            return found
        if type(found).__name__ != DelayedSubmission.__name__:  # submitit's own, or a copy of it
            raise TypeError(f"checkpoint() returned a {type(found).__name__}. Return a DelayedSubmission, or None.")
        return DelayedSubmission(found.function, *found.args, **found.kwargs)


def checkpoint_method(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the method of a function (an object with `__call__`) that says how it goes on, or None."""
    found = getattr(function, "__submitit_checkpoint__", None) or getattr(function, "checkpoint", None)
    return found if callable(found) else None


def read_pickle(path: str | Path) -> Any:
    """Return the value that `write_pickle` has written."""
    return pickle.loads(Path(path).read_bytes())


def as_pickle(value: Any) -> bytes:
    """Return what `write_pickle` would write."""
    file = io.BytesIO()
    _pickling().write(value, file)
    return file.getvalue()


def _pickling() -> Any:
    try:
        return importlib.import_module("carrel_submission.pickling")  # in a job, the caller's own
    except ImportError:
        return importlib.import_module("carrel.client.executor.pickling")


def write_pickle(value: Any, path: Path) -> None:
    """Write a value, by cloudpickle. The file is there whole, or not at all."""
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            _pickling().write(value, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def give_up(message: str) -> None:
    """Raise `UncompletedJobError`: what a job calls that shall not go on."""
    raise UncompletedJobError(message)
