"""`@carrel.remote`: a function whose calls run on the lab's machines."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from carrel.client.executor import Future
from carrel.client.remote.options import LIMIT
from carrel.client.remote.pools import POOLS
from carrel.client.remote.running import call_function

P = ParamSpec("P")
T = TypeVar("T")


class RemoteFunction(Generic[P, T]):
    """Calls give the result; what they print and show appears here. On a worker it is the plain function."""

    def __init__(self, function: Callable[P, T], limit: int, options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._limit, self._options = function, limit, options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in a worker, and wait. Raises what it raises, with the remote traceback."""
        found: T = call_function(POOLS.get(self._options), self._function, args, kwargs, self._limit)
        return found

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call it in a worker; return a future at once."""
        return POOLS.get(self._options).submit(self._function, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # `copy.copy` of a function is the function.
        return copy.copy, (self._function,)


@overload
def remote(function: Callable[P, T], /) -> RemoteFunction[P, T]: ...
@overload
def remote(*, limit: int = LIMIT, **options: Any) -> Callable[[Callable[P, T]], RemoteFunction[P, T]]: ...
def remote(function: Callable[..., Any] | None = None, /, *, limit: int = LIMIT, **options: Any) -> Any:
    """Let calls of a function run on the lab's machines: ``@carrel.remote`` or ``@carrel.remote(gpus=1)``.

    `options` are those of `carrel.Executor`; functions with the same ones share a pool. `limit`: most bytes that travel.
    """
    if function is not None:
        return RemoteFunction(function, limit, options)
    return lambda wrapped: RemoteFunction(wrapped, limit, options)
