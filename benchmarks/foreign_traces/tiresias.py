"""Traces of Tiresias (Gu et al., NSDI'19; github.com/SymbioticLab/Tiresias): models to run, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from carrel.simulate.trace import Trace, TraceJob
from carrel.simulate.traces.lines import Line, first_line, rows_of, trace_of

#: The whole header; the columns `iterations` and `interval` are not used.
COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval")


def read_tiresias(path: Path) -> Trace:
    """Read a trace of Tiresias. The names of the models become the jobs' names; cpus, memory and users are not in the file.

    Raises `Invalid` for anything that cannot be read.
    """
    return trace_of(path, seconds_rows(path))


def seconds_rows(path: Path, *, name: str | None = None) -> Sequence[tuple[Line, TraceJob]]:
    """Return the jobs of a file with these columns, named after their models or all by one `name`."""
    return [
        (
            line,
            TraceJob(
                id=line.whole("job_id", row["job_id"]),
                submitted=line.positive("submit_time", row["submit_time"]),
                duration=line.positive("duration", row["duration"]),
                gpus=line.whole("num_gpu", row["num_gpu"]),
                name=row["model_name"] if name is None else name,
            ),
        )
        for line, row in rows_of(path, COLUMNS)
    ]


def is_tiresias(path: Path) -> bool:
    """True when the file has the header of a trace of Tiresias, which a file of notebook cells has as well."""
    return tuple(name.strip() for name in first_line(path).split(",")) == COLUMNS
