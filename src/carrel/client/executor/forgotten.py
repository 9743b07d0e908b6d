"""An executor that nothing names any more closes its pool. No call of it is open then: each holds it by its future."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """The method of an object that may go meanwhile."""
    found = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        if (method := found()) is not None:
            method(*arguments)

    return call


def when_forgotten(executor: object, at_exit: Callable[..., None], close: Callable[[], None]) -> weakref.finalize[..., Any]:
    """Let `close` be called in a thread when the executor is forgotten, and `at_exit` no more at the end of the program.

    In a thread, since the last name may go at any place, also within a request of the same client.
    """
    process = os.getpid()

    def let_go() -> None:
        if os.getpid() == process:
            atexit.unregister(at_exit)
            with contextlib.suppress(RuntimeError):  # the program ends
                threading.Thread(target=close, name="carrel pool", daemon=True).start()

    found = weakref.finalize(executor, let_go)
    found.atexit = False
    return found
