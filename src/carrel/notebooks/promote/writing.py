"""Putting a task directory on the disk: whole, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from carrel.core.domain.errors import CarrelError, Conflict, Invalid, StorageFull
from carrel.notebooks.promote.findings import Findings, Severity


def check_target(target: Path, notebook: Path, *, force: bool) -> None:
    """Raise when a task must not be written to `target`."""
    here, there = Path(os.path.realpath(notebook.parent)), Path(os.path.realpath(target))
    if here == there or here.is_relative_to(there):
        raise Invalid(f"{target} holds the notebook itself.", remedy="Give the task a directory of its own: --output DIR.")
    if target.exists() and not target.is_dir():
        raise Conflict(f"{target} exists, and is no directory.", remedy="Name another with --output.")
    if target.is_dir() and any(target.iterdir()) and not force:
        raise Conflict(
            f"{target} exists.", remedy="Name another with --output, or write over what an earlier promotion made with --force."
        )


def write_directory(target: Path, texts: Mapping[str, str], copies: Mapping[str, Path]) -> None:
    """Write texts and copies below `target`.

    All is made beside it and read as a task first, so that a failure leaves `target` as it was. What is there already and has
    another name stays. Raises `Invalid`, `StorageFull`.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 - links stay
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        beside.mkdir(parents=True)
        try:
            _fill(beside, texts, copies)
            _check_task(beside)
            if target.is_dir():
                _move_over(beside, target)
            else:
                beside.rename(target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except CarrelError:
        raise
    except OSError as error:
        where = error.filename or target
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{where} cannot be written: {error.strerror}.", remedy="Free some space.") from error
        raise Invalid(f"{where} cannot be written: {error.strerror}.", remedy="Name another place with --output.") from error


def check_travels(target: Path, paths: set[str], findings: Findings) -> None:
    """Note which files of the task would stay behind when it is submitted."""
    from carrel.core.snapshots.packing import pack

    try:
        behind = sorted(paths - {entry.path for entry in pack(target).files})
    except CarrelError as error:
        findings.note(Severity.CHECK, f"the task cannot be submitted as it is: {error}")
        return
    for path in behind:
        findings.note(Severity.CHECK, f"{path} does not travel with the task: a .gitignore leaves it out")


def _fill(directory: Path, texts: Mapping[str, str], copies: Mapping[str, Path]) -> None:
    for path, text in texts.items():
        (directory / path).write_text(text, encoding="utf-8", errors="surrogateescape")
    for path, source in copies.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        shutil.copymode(source, place)


def _check_task(directory: Path) -> None:
    from carrel.core.tasks import describe

    describe(directory)


def _move_over(source: Path, target: Path) -> None:
    for where, _, names in os.walk(source):
        below = target / Path(where).relative_to(source)
        below.mkdir(parents=True, exist_ok=True)
        for name in names:
            (Path(where) / name).replace(below / name)
