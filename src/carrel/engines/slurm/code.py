"""Makes the file of compiled modules from which batch scripts start (`boot`).

The file lies in the spool, which the nodes see, and belongs to the user whose jobs they are. Its name follows from the
interpreter and from the state of Carrel's own files, so that an update makes another one. A job that is started with a file that
is gone imports as usual.
"""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import carrel
from carrel.engines.slurm import boot

_log = logging.getLogger(__name__)

#: Groups of which a batch script needs something.
_GROUPS = ("core", "engines", "node")
#: Seconds that making one may take, and after which one that nothing has been started with is removed.
_PATIENCE, _OLD = 60.0, 30 * 86400.0
_NAME = "boot.{}.code"


class BootCode:
    """The file for one interpreter, in one directory. One thread uses it."""

    def __init__(self, directory: Path, python: str) -> None:
        self._directory = directory
        self._python = python
        self._path: Path | None = None

    def command(self) -> list[str]:
        """Return what starts the guardian of an attempt; the directory of the attempt and its other arguments follow."""
        if self._path is None:
            self._path = self._directory / _NAME.format(_state(self._python))
            self._make(self._path)
        return [self._python, "-I", "-S", boot.__file__, str(self._path)]

    def _make(self, path: Path) -> None:
        """Without the file jobs begin as well, only later."""
        try:
            if path.exists():
                path.touch()
                return
            command = [self._python, "-P", "-m", "carrel.engines.slurm.making_code", str(path)]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=True, cwd="/")
            for old in self._directory.glob(_NAME.format("*")):
                with suppress(OSError):
                    if old.stat().st_mtime < time.time() - _OLD:
                        old.unlink()
        except (OSError, subprocess.SubprocessError) as error:
            _log.warning("jobs in Slurm begin later than they could: %s", error)


def _state(python: str) -> str:
    """A word for the interpreter and what it would import."""
    root = Path(carrel.__file__).parent
    newest = max(path.stat().st_mtime_ns for group in _GROUPS for path in (root / group).rglob("*.py"))
    return hashlib.sha256(f"{python}\n{sys.version}\n{root}\n{newest}".encode()).hexdigest()[:16]
