"""What tests submit; the module travels."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from carrel import submitit

#: Makes executors for a test.
Opens = Callable[..., submitit.AutoExecutor]


def begins_and_waits(place: str) -> str:
    """Says that it has begun, and goes on when it may."""
    where = Path(place)
    (where / "begun").touch()
    while not (where / "go").exists():
        time.sleep(0.01)
    return "done"


class Steps(submitit.helpers.Checkpointable):
    """Begins again after a checkpoint, and remembers how often it has begun."""

    def __init__(self, place: str, times: int = 1) -> None:
        self.place = place
        self.times = times
        self.begun = 0

    def __call__(self, word: str) -> tuple[str, int]:
        self.begun += 1
        print("begun", self.begun, flush=True)
        if self.begun <= self.times:
            begins_and_waits(self.place)
        return word, self.begun

    def checkpoint(self, word: str) -> submitit.DelayedSubmission:
        print("checkpoint", self.begun, flush=True)
        return submitit.DelayedSubmission(self, word + "!")


class GivesUp(Steps):
    """Does not want to go on."""

    def checkpoint(self, word: str) -> None:
        return None


class CannotTell(Steps):
    """Has a checkpoint that fails."""

    def checkpoint(self, word: str) -> submitit.DelayedSubmission:
        raise OSError("the disk is full")
