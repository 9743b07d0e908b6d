"""Jobs of Microsoft's Philly cluster (Jeon et al., ATC'19; msr-fiddle/philly-traces), as comma-separated files name them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from carrel.simulate.trace import Trace, TraceJob
from carrel.simulate.traces.lines import Line, first_line, rows_of, trace_of

#: Columns that are read; others may be there.
COLUMNS = ("timestamp", "duration", "num_gpus")


def read_philly(path: Path) -> Trace:
    """Read one virtual cluster: moments of submission in UTC, run times in seconds, GPUs. Users and names are not in the file.

    Raises `Invalid` for anything that cannot be read.
    """
    rows = [(line, row, _seconds(line, row["timestamp"])) for line, row in rows_of(path, COLUMNS)]
    first = min((at for _, _, at in rows), default=0.0)
    return trace_of(
        path,
        [
            (
                line,
                TraceJob(
                    id=number,
                    submitted=at - first,
                    duration=line.positive("duration", row["duration"]),
                    gpus=line.whole("num_gpus", row["num_gpus"]),
                ),
            )
            for number, (line, row, at) in enumerate(rows)
        ],
    )


def is_philly(path: Path) -> bool:
    """True when the file's header names these columns."""
    return set(COLUMNS) <= {name.strip() for name in first_line(path).split(",")}


def _seconds(line: Line, text: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise line.wrong(f"timestamp is {text!r}.", "Write a moment, such as 2017-10-08 01:24:30.") from None
