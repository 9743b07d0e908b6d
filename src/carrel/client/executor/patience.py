"""A lab that is away for a moment is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from carrel.client.transport import LabUnreachable

T = TypeVar("T")
#: Seconds.
_PATIENCE = 120.0


def again(request: Callable[[], T]) -> T:
    """What `request` returns; a lab that is away (a restart) is waited for. For requests that may be sent twice."""
    deadline, pause = time.monotonic() + _PATIENCE, 0.05
    while True:
        try:
            return request()
        except LabUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
