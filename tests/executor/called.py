"""Functions that tests call in workers; the module travels."""

from __future__ import annotations

import os
import time
from pathlib import Path


def begins_and_waits(flags: str) -> str:
    """Says that it has begun, and goes on when it may."""
    where = Path(flags)
    (where / f"begun-{os.getpid()}").touch()
    while not (where / "go").exists():
        time.sleep(0.01)
    return "done"


def begun(flags: Path) -> list[int]:
    """Processes in which it has begun."""
    return [int(path.name.partition("-")[2]) for path in flags.glob("begun-*")]


def tells_its_process(place: str, number: int) -> int:
    """Writes down its process and its number when it begins."""
    with open(place, "a") as file:
        file.write(f"{os.getpid()} {number}\n")
    time.sleep(0.002)
    return number


def leaves_a_trace(place: str, number: int) -> int:
    """Writes down each time that it begins."""
    with open(place, "a") as file:
        file.write(f"{number}\n")
    time.sleep(0.005)
    return number * number
