"""Arguments on their way to the lab: a future among them is named, and the worker puts its call's result in that place."""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle

from carrel.client.executor import pickling
from carrel.client.executor.future import Future, FutureInside


def dump_arguments(value: Any) -> tuple[list[Any], list[Future[Any]]]:
    """Return the parts of the pickled arguments, and the futures in them, wherever they are.

    Waits until the lab has the calls of these futures. Raises what a value raises when it is pickled.
    """
    try:
        return pickling.dump(value), []
    except FutureInside:
        pass  # the common way, without futures, is not slower for them
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler = _Pickler(file, protocol=5, buffer_callback=buffers.append)
    pickler.dump(value)
    return pickling.parts(file.getvalue(), buffers), list(pickler.futures.values())


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
    """Writes the number of its call for a future."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.futures: dict[int, Future[Any]] = {}

    def persistent_id(self, value: Any) -> int | None:
        """A future's call; other values are pickled."""
        if not isinstance(value, Future):
            return None
        self.futures[value.call_id] = value
        return value.call_id
