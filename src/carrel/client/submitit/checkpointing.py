"""Functions that can go on. A job loads them, too: standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from carrel.client.submitit.submission import DelayedSubmission


class Checkpointable:
    """A callable that goes on after its walltime, and after preemption.

    Before either, the job calls `checkpoint` with the arguments of the call. What that returns is what the next attempt calls.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG004 - a subclass without __init__ may be called with some
        """As submitit's: arguments that no `__init__` takes are no error."""
        return super().__new__(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the job does: a subclass says it."""
        raise NotImplementedError(f"{type(self).__name__} has no __call__.")

    def checkpoint(self, *args: Any, **kwargs: Any) -> DelayedSubmission | None:
        """How to go on: as it stands, it is this object (with what it has become) called with the same arguments."""
        return DelayedSubmission(self, *args, **kwargs)


class FunctionSequence(Checkpointable):
    """Calls one function after the other, and returns their results as a list. After a checkpoint it goes on with the next."""

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self.delayed_functions: list[DelayedSubmission] = []

    def add(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Append a call."""
        self.delayed_functions.append(DelayedSubmission(func, *args, **kwargs))

    def __len__(self) -> int:
        return len(self.delayed_functions)

    def __iter__(self) -> Iterator[DelayedSubmission]:
        return iter(self.delayed_functions)

    def __call__(self) -> list[Any]:
        """Call what was not called yet; return all results."""
        if self.verbose:
            print(f"Starting from {sum(call.done() for call in self)}/{len(self)}", flush=True)
        return [call.result() for call in self]
