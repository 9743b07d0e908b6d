"""Functions that tests call in workers; the module travels."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from pickle import PickleBuffer
from typing import Any


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


def computes_alone(place: str, number: int) -> int:
    """Fails if another call is in here at the same time."""
    descriptor = os.open(place, os.O_CREAT | os.O_EXCL)
    time.sleep(0.01)
    os.close(descriptor)
    Path(place).unlink()
    return number


def large_with_its_process(flags: str, buffer: Any) -> Any:
    """Says that it has begun, with its arguments at hand, and gives them back when it may."""
    begins_and_waits(flags)
    return PickleBuffer(bytearray(buffer))


def speaks_and_fails() -> None:
    """Writes to both streams, and raises."""
    print("out")
    print("err", file=sys.stderr)
    raise KeyError("this")


def changed(buffer: Any) -> Any:
    """Writes to its argument, and returns it."""
    buffer[0] = 255
    return PickleBuffer(buffer)


def sizes_and_way(buffers: Any) -> tuple[list[int], int]:
    """Sizes of the buffers, and how many files of the lab's this process has mapped."""
    maps = Path("/proc/self/maps").read_text()
    return [len(one) for one in buffers], maps.count("/calls/")


def short_unless(flags: str, number: int, odd: int, then: str) -> int:
    """Writes down that it begins; the odd one waits until it may go on, or dies, or raises."""
    with open(Path(flags) / "numbers", "a") as file:
        file.write(f"{number}\n")
    if number == odd and then == "waits":
        begins_and_waits(flags)
    elif number == odd and then == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif number == odd:
        raise KeyError(number)
    return number


class Kept:
    """A value of which it can be seen whether it is still there."""


def make_kept(_number: int) -> Kept:
    """Make one."""
    return Kept()
