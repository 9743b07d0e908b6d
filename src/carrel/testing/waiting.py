"""Waiting for what happens outside of the test, with one limit for all tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

#: Seconds that a test waits for what ought to happen, before it fails. Only a test that fails waits so long: that a machine is
#: slow, or busy with other things, is no failure.
PATIENCE = 180.0

T = TypeVar("T")


def wait_until(happened: Callable[[], T], what: str | Callable[[], object] = "", timeout: float = PATIENCE) -> T:
    """Look at the world outside until `happened` is true of it, and return what it said; `what` tells of it where it never is.

    For what gives no sign of its own: a file, another process, what another user of the lab sees.
    """
    deadline = time.monotonic() + timeout
    pause = 0.002
    while not (found := happened()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Not within {timeout:g} s: {what() if callable(what) else what or happened}")
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)
    return found
