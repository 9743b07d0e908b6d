"""What Slurm's accounting says of past jobs: `sacct --parsable2` (sacct(1)), and the same without a header for Open XDMoD."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from carrel.core.exports import SACCT_COLUMNS
from carrel.simulate.trace import Trace, TraceJob
from carrel.simulate.traces.lines import Line, first_line, lines_of, trace_of

#: Columns that must be there; Account, JobName, TimelimitRaw, else Timelimit, and ReqTRES are read where they are.
COLUMNS = ("JobID", "User", "Submit", "Start", "End", "AllocTRES")
#: What makes such a file, for the message that there is none.
COMMAND = (
    "sacct --allusers --allocations --parsable2 --starttime now-30days --format "
    "JobID,User,Account,Submit,Start,End,TimelimitRaw,ReqTRES,AllocTRES,JobName"
)
_LIMIT = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)(?:,|$)")


def read_sacct(path: Path) -> Trace:
    """Read the jobs that had GPUs and have ended.

    Run time is from start to end; users, accounts and job names are as they stand, and the time limit is the walltime. Steps,
    jobs without GPUs, and jobs that never started or have not ended are left out; the last two are counted in the notes. Names
    with a "|" are read only where JobName is the last column: Slurm does not mark them. Raises `Invalid` for what cannot be read.
    """
    return _read(path, ())


def read_xdmod(path: Path) -> Trace:
    """Read the same from a file for the shredder of Open XDMoD: it has no header, and always these columns."""
    return _read(path, SACCT_COLUMNS)


def _read(path: Path, columns: Sequence[str]) -> Trace:
    left_out: Counter[str] = Counter()
    jobs: list[tuple[Line, TraceJob, float]] = []
    for line, row in _rows(path, columns):
        if "." in row["JobID"]:
            continue
        started, ended = _moment(line, "Start", row["Start"]), _moment(line, "End", row["End"])
        gpus = _gpus(row)
        if not gpus:
            left_out["without GPUs"] += 1
        elif started is None or ended is None or _ended_in_line(row):
            left_out["that never started or have not ended"] += 1
        else:
            submitted = _moment(line, "Submit", row["Submit"])
            if submitted is None:
                raise line.wrong(f"Submit is {row['Submit']!r}.", "Write a moment, such as 2026-11-02T10:00:00.")
            job = TraceJob(
                id=len(jobs),
                submitted=0.0,
                duration=max(0.0, ended - started),
                gpus=gpus,
                time=_walltime(line, row),
                user=row["User"] or "user",
                account=row.get("Account", ""),
                name=row.get("JobName") or "job",
            )
            jobs.append((line, job, submitted))
    begin = min((submitted for _, _, submitted in jobs), default=0.0)
    notes = [f"Jobs {why}, left out: {count:,}." for why, count in sorted(left_out.items())]
    return trace_of(path, [(line, replace(job, submitted=submitted - begin)) for line, job, submitted in jobs], notes=notes)


def is_sacct(path: Path) -> bool:
    """True when the file's header names these columns."""
    return set(COLUMNS) <= set(first_line(path).split("|"))


def is_xdmod(path: Path) -> bool:
    """True when the file begins with a line of these columns: its moment of submission is where it has to be."""
    values = first_line(path).split("|")
    return len(values) >= len(SACCT_COLUMNS) and _MOMENT.fullmatch(values[SACCT_COLUMNS.index("Submit")]) is not None


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Line, Mapping[str, str]]]:
    header = list(columns)
    for line, text in lines_of(path):
        values = text.split("|")
        if not header:
            header = values
            missing = [name for name in COLUMNS if name not in header]
            if missing:
                raise line.wrong(f"the header has no {', '.join(missing)}.", f"Make the file with: {COMMAND}")
            continue
        if len(values) > len(header) and header[-1] == "JobName":
            values = [*values[: len(header) - 1], "|".join(values[len(header) - 1 :])]
        if len(values) != len(header):
            raise line.wrong(f"there are {len(values)} values.", f"Write {len(header)}, as in the header.")
        yield line, dict(zip(header, values, strict=True))


def _moment(line: Line, name: str, text: str) -> float | None:
    if text in ("", "Unknown", "None"):
        return None
    try:
        # The cluster's local time; only differences count.
        return (datetime.fromisoformat(text).replace(tzinfo=None) - datetime(2000, 1, 1)).total_seconds()
    except ValueError:
        raise line.wrong(f"{name} is {text!r}.", "Write a moment, such as 2026-11-02T10:00:00.") from None


def _gpus(row: Mapping[str, str]) -> int:
    found = _GPUS.search(row["AllocTRES"]) or _GPUS.search(row.get("ReqTRES", ""))
    return int(found[1]) if found else 0


def _ended_in_line(row: Mapping[str, str]) -> bool:
    """True of a job that never had a place: where it is fast, Slurm says that it began when it ended."""
    return row.get("NodeList") == "None assigned" or (not row["AllocTRES"] and row["Start"] == row["End"])


def _walltime(line: Line, row: Mapping[str, str]) -> int | None:
    """Seconds; None for "UNLIMITED" and what Slurm took from the partition without saying how much."""
    if "TimelimitRaw" not in row:
        found = _LIMIT.fullmatch(row.get("Timelimit", ""))
        if found is None:
            return None
        days, hours, minutes, seconds = (line.whole("Timelimit", part or "0") for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds or None
    text = row["TimelimitRaw"]
    return line.whole("TimelimitRaw", text) * 60 or None if text.strip().isdigit() else None
