"""The Standard Workload Format of the Parallel Workloads Archive (Chapin et al., JSSPP'99), version 2.2."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from carrel.simulate.trace import Cluster, Trace, TraceJob
from carrel.simulate.traces.lines import Line, first_line, lines_of, trace_of

#: The fields of a line, in order; -1 stands for unknown.
FIELDS = (
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average cpu time",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user id",
    "group id",
    "executable number",
    "queue number",
    "partition number",
    "preceding job number",
    "think time",
)

_HEADER = re.compile(r";\s*(MaxNodes|MaxProcs):\s*(\d+)\b", re.IGNORECASE)


def read_swf(path: Path) -> Trace:
    """Read a trace in the Standard Workload Format, gzip'ed or not.

    A processor counts as a GPU: the requested ones, else the allocated ones. Run time becomes the duration, requested time the
    walltime, user id 7 the user ``user-7``, group id 7 the account ``group-7``, executable 7 the name ``executable-7``. Queue,
    partition, memory, status and dependencies are not used. Jobs that never ran (no run time or no processors) are left out and
    counted in the notes. The comments `MaxNodes` and `MaxProcs` make the cluster.

    Raises `Invalid` for anything that cannot be read.
    """
    header: dict[str, int] = {}
    left_out: Counter[str] = Counter()
    jobs: list[tuple[Line, TraceJob]] = []
    for line, text in lines_of(path):
        if text.startswith(";"):
            if found := _HEADER.match(text):
                header[found[1].lower()] = int(found[2])
            continue
        fields = _fields(line, text)
        job = _job(line, fields)
        if isinstance(job, str):
            left_out[job] += 1
        else:
            jobs.append((line, job))
    notes = ["Processors count as GPUs.", *(f"Jobs {why}, left out: {count}." for why, count in sorted(left_out.items()))]
    cluster, note = _cluster(header)
    return trace_of(path, jobs, cluster=cluster, notes=[*notes, *note])


def is_swf(path: Path) -> bool:
    """True when the file begins with a comment or with a line of as many numbers as SWF has fields."""
    text = first_line(path)
    return text.startswith(";") or (len(text.split()) == len(FIELDS) and re.fullmatch(r"[-+0-9.eE\s]+", text) is not None)


def _fields(line: Line, text: str) -> Mapping[str, str]:
    values = text.split()
    if len(values) != len(FIELDS):
        raise line.wrong(f"{text!r} has {len(values)} fields.", f"Write {len(FIELDS)} numbers, or a comment after a semicolon.")
    for name, value in zip(FIELDS, values, strict=True):
        line.number_of(name, value)
    return dict(zip(FIELDS, values, strict=True))


def _job(line: Line, fields: Mapping[str, str]) -> TraceJob | str:
    """Return the job, or in a few words why it never ran."""
    duration = line.number_of("run time", fields["run time"])
    if duration < 0:
        return "without a run time"
    requested, allocated = (line.whole(name, fields[name], least=-1) for name in ("requested processors", "allocated processors"))
    gpus = requested if requested > 0 else allocated
    if gpus < 1:
        return "without processors"
    time = line.whole("requested time", fields["requested time"], least=-1)
    user, group, executable = (line.whole(name, fields[name], least=-1) for name in ("user id", "group id", "executable number"))
    return TraceJob(
        id=line.whole("job number", fields["job number"]),
        submitted=line.positive("submit time", fields["submit time"]),
        duration=duration,
        gpus=gpus,
        time=time if time > 0 else None,
        user=f"user-{user}" if user >= 0 else "user",
        account=f"group-{group}" if group >= 0 else "",
        name=f"executable-{executable}" if executable >= 0 else "job",
    )


def _cluster(header: Mapping[str, int]) -> tuple[Cluster | None, list[str]]:
    """Return what the comments say about the machine, and what had to be assumed."""
    nodes, processors = header.get("maxnodes", 0), header.get("maxprocs", 0)
    if processors < 1:
        return None, []
    if nodes < 1 or processors % nodes:
        return Cluster(nodes=processors, gpus_per_node=1), [f"Each of the {processors} processors is taken to be a node."]
    return Cluster(nodes=nodes, gpus_per_node=processors // nodes), []
