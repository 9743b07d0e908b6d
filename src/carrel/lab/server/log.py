"""The log of the server. A disk that is full is said once on the terminal, and not with each line that is lost."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from carrel.core.spool.log_lines import WholeLines

#: Loggers that have more to say than anybody reads.
_CHATTY = ("httpx", "httpcore", "uvicorn.error")


class LabLog(RotatingFileHandler):
    """A log file whose lines may be lost; the program goes on, and its terminal stays readable.

    Python's own handlers print a traceback for each line that they cannot write.
    """

    def __init__(self, file: Path, *, terminal: TextIO | None = None) -> None:
        """`terminal` is where one line goes when nothing can be written any more, and one when it can be again."""
        super().__init__(file, maxBytes=10 * 1024**2, backupCount=3, delay=True)
        self.setFormatter(WholeLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._terminal = terminal
        self._lost = 0
        self._failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or count it as lost."""
        self._failed = False
        super().emit(record)
        if self._failed:
            self._lost += 1
        elif self._lost:
            lost, self._lost = self._lost, 0
            self._say(f"The log {self.baseFilename} is written again; {lost} lines of it were lost.")

    def handleError(self, record: logging.LogRecord) -> None:
        """Say once what is wrong with the log; a defect in a call of ours is reported as Python does it."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._failed = True
        # What is left in its buffer would fail again with the next line, and once more when it is closed.
        self._drop()
        if not self._lost:
            why = error.strerror or error
            self._say(f"The log {self.baseFilename} cannot be written: {why}. What is lost of it is counted.")

    def _drop(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError):  # the buffer's content is lost, as was said
                stream.close()

    def _say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads the terminal
            print(text, file=self._terminal or sys.stderr, flush=True)


def log_to(file: Path) -> None:
    """Send what the lab logs to `file`."""
    root = logging.getLogger()
    root.addHandler(LabLog(file))
    root.setLevel(logging.INFO)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
