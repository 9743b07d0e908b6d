"""A process with CUDA state on the fake driver."""

from __future__ import annotations

from carrel.node.suspension.specimen import Specimen, start
from support.fake_driver.build import FakeDriver

_MIB = 1024**2


def start_specimen(driver: FakeDriver, *, size: int = 4 * _MIB, device: str | None = None, managed: int = 0) -> Specimen:
    """Start a process on `driver` with `size` bytes of a pattern on `device` (a uuid; default: the first).

    Orders: "step" (check and change the state), "run" (times=…: steps in the background), "stop", "count" (answers always),
    "check" (compare every byte: {"same": …}), "grow" and "manage" (size=…), "where" ({"device": …}). Close or kill it in the end.
    """
    return start(size=size, environment=driver.environment(), device=device, managed=managed)
