"""Lines of logs. Each that begins with a time is one record: names, messages and errors that others have chosen forge none."""

from __future__ import annotations

import logging
import sys

from carrel.core.domain.control_characters import visible


class WholeLines(logging.Formatter):
    """Shows control characters of a record, and sets what follows its line (a traceback) in from the edge."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the record's one line."""
        return visible(super().formatMessage(record), kept="\t")

    def formatException(self, ei: logging._SysExcInfoType) -> str:
        """Return the traceback, with each line set in."""
        return "\n".join("  " + visible(line, kept="\t") for line in super().formatException(ei).split("\n"))


def log_to_stderr() -> None:
    """Send what a process logs to its standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(WholeLines("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
