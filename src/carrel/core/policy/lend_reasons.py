"""Why a request for a GPU waits: a constant for programs, one line for people. Nobody's name is in it but the reader's own."""

from __future__ import annotations

from carrel.core.domain.job import Reason
from carrel.core.domain.units import format_duration

IN_USE = "GpuInUse"
TASK = "GpuTask"
HELD = "GpuHeld"
KEPT = "GpuKept"
MOVING = "GpuMoving"
NO_ROOM = "GpuNoRoom"
HOST_MEMORY = "HostMemoryFull"
WITHHELD = "GpuWithheld"
OWN_CELL = "OwnCell"

#: Every code, with what it means. The documentation lists the same table.
LENDING_REASONS: dict[str, str] = {
    IN_USE: "A cell computes on the GPU; it is next when that ends, or when the cell's time slice is over.",
    TASK: "A task has the GPU until its turn is over, or until its end if it does not lend; or a reserved session has it.",
    HELD: "GPU state that cannot be moved, or that its owner asked to keep, is on the GPU; its idle timer runs.",
    KEPT: "The GPU is promised to somebody further ahead in the line.",
    MOVING: "GPU state is being moved to or from host memory to make room.",
    NO_ROOM: "What is on the GPU has to stay there and leaves too little memory.",
    HOST_MEMORY: "Neither host memory nor the disk, where it may be used, has room for the GPU state that would have to move.",
    WITHHELD: "The GPU is not lent out now (it is cordoned, or its last state could not be verified).",
    OWN_CELL: "Another cell of the same notebook has the GPU.",
}

#: What helps a cell for which nothing that the broker can do makes room.
REMEDIES: dict[str, str] = {
    HOST_MEMORY: "Shut down kernels that you do not need any more, here or in other notebooks, then run the cell again.",
    NO_ROOM: "Shut down kernels that you do not need any more, or ask whose programs fill the GPU; then run the cell again.",
    WITHHELD: "Restart the kernel to get another GPU, or ask an administrator about this one.",
}

#: What would help it, for the line that it reads while it waits.
_FREES: dict[str, str] = {
    HOST_MEMORY: "the end of a kernel with GPU state makes room",
    NO_ROOM: "the end of a kernel or program on the GPU makes room",
    WITHHELD: "an administrator can lend it out again",
}

_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def ordinal(number: int) -> str:
    """1 is "1st", 12 is "12th"."""
    ending = "th" if 10 <= number % 100 <= 20 else _ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"


def bounded(code: str, cause: str, now: float, since: float | None, until: float) -> str:
    """The cause of a wait that nothing that is under way will end: for how long it has been so, what would help, and its end."""
    ago = "" if since is None else f"this has been so for {format_duration(now - since)}"
    parts = [cause, ago, _FREES.get(code, ""), f"it stops waiting in {format_duration(until - now)}"]
    return "; ".join(filter(None, parts))


def waiting(code: str, gpus: int, position: int, estimate: float | None, cause: str) -> Reason:
    """The reason with its line for the user."""
    what = "a GPU" if gpus == 1 else f"{gpus} GPUs"
    soon = "" if estimate is None else ", any moment now" if estimate < 0.5 else f", about {format_duration(estimate)}"
    return Reason(code=code, message=f"waiting for {what}: {ordinal(position)} in line{soon} ({cause})")
