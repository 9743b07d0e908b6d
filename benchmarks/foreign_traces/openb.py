"""Tasks of Alibaba's GPU cluster of 2023 (Weng et al., ATC'23; alibaba/clusterdata, `openb_pod_list_*.csv`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from carrel.simulate.trace import Trace, TraceJob
from carrel.simulate.traces.lines import Line, first_line, rows_of, trace_of

#: Columns that are read; others may be there.
COLUMNS = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")


def read_openb(path: Path) -> Trace:
    """Read the tasks that had GPUs; times are seconds.

    A task runs from when it was scheduled to its deletion. One that asked for a part of a GPU has a whole one here. Users, names
    and walltimes are not in the file; processors and memory are not used. Tasks without GPUs, or that were never scheduled, are
    left out and counted in the notes. Raises `Invalid` for anything that cannot be read.
    """
    jobs: list[tuple[Line, TraceJob]] = []
    without = never = parts = 0
    for number, (line, row) in enumerate(rows_of(path, COLUMNS)):
        gpus = line.whole("num_gpu", row["num_gpu"])
        if not gpus:
            without += 1
        elif not row["scheduled_time"]:
            never += 1
        else:
            parts += gpus == 1 and line.positive("gpu_milli", row["gpu_milli"]) < 1000
            jobs.append((line, _job(number, line, row, gpus)))
    begin = min((job.submitted for _, job in jobs), default=0.0)
    moved = [(line, replace(job, submitted=job.submitted - begin)) for line, job in jobs]
    told = (
        ("Tasks without GPUs, left out", without),
        ("Tasks that were never scheduled, left out", never),
        ("Tasks that asked for a part of a GPU and have a whole one here", parts),
    )
    return trace_of(path, moved, notes=[f"{what}: {many:,}." for what, many in told if many])


def is_openb(path: Path) -> bool:
    """True when the file's header names these columns."""
    return set(COLUMNS) <= {name.strip() for name in first_line(path).split(",")}


def _job(number: int, line: Line, row: Mapping[str, str], gpus: int) -> TraceJob:
    created, scheduled, deleted = (
        line.positive(name, row[name]) for name in ("creation_time", "scheduled_time", "deletion_time")
    )
    return TraceJob(id=number, submitted=created, duration=max(0.0, deleted - scheduled), gpus=gpus)
