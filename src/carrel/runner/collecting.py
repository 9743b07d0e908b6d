"""Storing what an attempt left in its working directory, when that was not possible at its end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from carrel.domain.errors import Conflict, NotFound
from carrel.domain.launch import Launch
from carrel.domain.serial import from_plain
from carrel.runner.outputs import StoredOutputs, store_outputs
from carrel.runner.prepare import is_inside
from carrel.spool import AttemptDirectory, read_claim


def collect_outputs(directory: AttemptDirectory, blobs: Path, limit: int) -> StoredOutputs:
    """Store the outputs that an attempt left in its working directory; nothing is removed there.

    Again is harmless. Raises `NotFound` when there is no working directory any more, `Conflict` while the attempt's runner lives.
    """
    claim = read_claim(directory.claim)
    if claim is not None and claim.held:
        raise Conflict(f"The attempt in {directory.path} is not over yet.", remedy="Try again in a moment.")
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
    shutil.rmtree(directory.work, ignore_errors=True)
