"""The job log of Microsoft's Philly cluster (Jeon et al., ATC'19; msr-fiddle/philly-traces, `cluster_job_log`): JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from carrel.simulate.trace import Trace, TraceJob
from carrel.simulate.traces.lines import Line, first_line, lines_of, trace_of


def read_philly_log(path: Path) -> Trace:
    """Read all virtual clusters: users, and virtual clusters as accounts.

    A job has the GPUs of its first attempt, and its run time is that of all its attempts together: what was tried again took
    GPUs, too. Jobs that never ran, that had no GPU, or of whose attempts one has no end are left out and counted in the notes.
    All jobs of a user have one name, since the log has none. Raises `Invalid` for anything that cannot be read.
    """
    whole = Line(path, 1)
    try:
        found = json.loads("\n".join(text for _, text in lines_of(path)))
    except ValueError as error:
        raise whole.wrong(f"this is no JSON: {error}.", "Name the file cluster_job_log as it was published.") from None
    if not isinstance(found, list):
        raise whole.wrong("this is no list of jobs.", "Name the file cluster_job_log as it was published.")
    left_out: Counter[str] = Counter()
    jobs: list[tuple[float, Mapping[str, Any], float, int]] = []
    for number, entry in enumerate(found, start=1):
        try:
            seconds, gpus, why = _ran(entry)
            if why:
                left_out[why] += 1
            else:
                jobs.append((_moment(entry["submitted_time"]), entry, seconds, gpus))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise whole.wrong(f"job {number} of the list cannot be read: {error!r}.", "Correct it, or leave it out.") from None
    first = min((at for at, *_ in jobs), default=0.0)
    traced = [
        TraceJob(
            id=number,
            submitted=at - first,
            duration=seconds,
            gpus=gpus,
            user=str(entry.get("user", "user")),
            account=str(entry.get("vc", "")),
        )
        for number, (at, entry, seconds, gpus) in enumerate(jobs)
    ]
    notes = [f"Jobs {why}, left out: {count:,}." for why, count in sorted(left_out.items())]
    return trace_of(path, [(whole, job) for job in traced], notes=notes)


def is_philly_log(path: Path) -> bool:
    """True when the file begins like a list in JSON."""
    return first_line(path).startswith("[")


def _ran(entry: Mapping[str, Any]) -> tuple[float, int, str]:
    """Seconds and GPUs of a job; or why there is nothing to say of it."""
    attempts = entry["attempts"]
    if not attempts:
        return 0.0, 0, "that never ran"
    if not all(attempt["start_time"] and attempt["end_time"] for attempt in attempts):
        return 0.0, 0, "without the end of an attempt"
    gpus = sum(len(place["gpus"]) for place in attempts[0]["detail"])
    if not gpus:
        return 0.0, 0, "without GPUs"
    seconds = sum(max(0.0, _moment(attempt["end_time"]) - _moment(attempt["start_time"])) for attempt in attempts)
    return seconds, gpus, ""


def _moment(text: str) -> float:
    # Local time of the cluster; only differences count.
    return (datetime.fromisoformat(text) - datetime(2000, 1, 1)).total_seconds()
