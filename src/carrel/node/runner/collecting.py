"""Storing what an attempt left in its working directory, when that was not possible at its end."""

from __future__ import annotations

import json
import time
from pathlib import Path

from carrel.core.domain.errors import Conflict, NotFound
from carrel.core.domain.launch import Launch
from carrel.core.domain.serial import from_plain
from carrel.core.spool import AttemptDirectory, read_claim
from carrel.core.spool.trees import remove_tree
from carrel.node.runner.outputs import StoredOutputs, store_outputs
from carrel.node.runner.prepare import is_inside

#: Seconds that a runner which has told the end may still be there.
_TIDYING = 20.0


def collect_outputs(directory: AttemptDirectory, blobs: Path, limit: int) -> StoredOutputs:
    """Store the outputs that an attempt left in its working directory; nothing is removed there.

    Again is harmless. Raises `NotFound` when there is no working directory any more, `Conflict` while the attempt's runner lives.
    """
    _wait_for_runner(directory)
    try:
        launch = from_plain(Launch, json.loads(directory.launch.read_bytes()))
    except FileNotFoundError:
        raise NotFound(f"Nothing is left of the attempt in {directory.path}.") from None
    cwd = directory.work / launch.task.directory
    if not cwd.is_dir() or not is_inside(directory.work, cwd):
        raise NotFound(
            f"There is no working directory in {directory.path} any more: what it held was stored, or it was removed.",
            remedy="Run the job again.",
        )
    return store_outputs(cwd, launch.task.outputs, blobs, limit)


def remove_work(directory: AttemptDirectory) -> None:
    """Remove the working directory of an attempt that is over, once nothing in it is needed any more."""
    remove_tree(directory.work)


def _wait_for_runner(directory: AttemptDirectory) -> None:
    """The runner has told the end and tidies up; what it leaves is looked at after that."""
    until = time.monotonic() + _TIDYING
    while (claim := read_claim(directory.claim)) is not None and claim.held:
        if time.monotonic() > until:
            raise Conflict(f"The attempt in {directory.path} is not over yet.", remedy="Try again in a moment.")
        time.sleep(0.05)
