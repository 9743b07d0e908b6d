"""Traces of Muri (Zhao et al., SIGCOMM'22; github.com/Rivendile/Muri): jobs of Philly with models to run, in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Cluster, Trace, TraceJob
from carrel.simulate.traces.lines import first_line, rows_of, trace_of

COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "iteration_time")
#: What the traces were replayed on.
CLUSTER = Cluster(nodes=8, gpus_per_node=8)
#: By how much Muri's simulator lengthens the iterations of a job that has its GPUs to itself.
OVERHEAD = 1.015

#: What a job's run time is made of: the file's duration, or its iterations.
Runtime = Literal["duration", "iterations"]


def read_muri(path: Path, *, runtime: Runtime = "duration") -> Trace:
    """Read a trace of Muri.

    The run time is the column `duration`, as Tiresias' simulator has it (reference results of FIFO and first fit), or with
    ``"iterations"`` what Muri's simulator makes of it (reference results of the preemptive policies): iterations x time of one
    x 1.015. The names of the models become the jobs' names; cpus, memory and users are not in the file.

    Raises `Invalid` for anything that cannot be read.
    """
    if runtime not in ("duration", "iterations"):
        raise Invalid(f"There is no run time {runtime!r} in a trace of Muri.", remedy="Choose duration or iterations.")
    jobs = []
    for line, row in rows_of(path, COLUMNS):
        milliseconds = line.positive("duration", row["duration"])
        iterations = line.whole("iterations", row["iterations"])
        iteration = line.positive("iteration_time", row["iteration_time"])
        if runtime == "iterations":
            milliseconds = iterations * iteration * OVERHEAD
        job = TraceJob(
            id=line.whole("job_id", row["job_id"]),
            submitted=line.positive("submit_time", row["submit_time"]) / 1000,
            duration=milliseconds / 1000,
            gpus=line.whole("num_gpu", row["num_gpu"]),
            name=row["model_name"],
        )
        jobs.append((line, job))
    note = "Run times are the file's durations." if runtime == "duration" else "Run times are iterations x time of one x 1.015."
    return trace_of(path, jobs, cluster=CLUSTER, notes=[note])


def read_muri_iterations(path: Path) -> Trace:
    """Read a trace of Muri with run times made of iterations."""
    return read_muri(path, runtime="iterations")


def is_muri(path: Path) -> bool:
    """True when the file has the header of a trace of Muri."""
    return set(COLUMNS) <= {name.strip() for name in first_line(path).split(",")}
