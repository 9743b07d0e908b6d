"""Exports read by readers of their own, written from the formats' descriptions: nothing of Carrel's is in them."""

from __future__ import annotations

import calendar
import csv
import io
import re
import time
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_exported_lines import ONE, attempts, changed, written

from carrel.core.exports import SACCT_COLUMNS, ExportedAttempt, sacct_line

NOW = 2e6
#: sacct(1), "JOB STATE CODES".
STATES = re.compile(
    "BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PENDING|PREEMPTED|RUNNING|REQUEUED|RESIZING|"
    "REVOKED|SUSPENDED|TIMEOUT"
)
#: The fields of a line of the Standard Workload Format, in order: the archive's own list of 18.
SWF = (
    "job", "submit", "wait", "run", "processors", "cpu_time", "memory", "asked_processors", "asked_time", "asked_memory",
    "status", "user", "group", "application", "queue", "partition", "preceding", "think",
)  # fmt: skip


def moment(text: str) -> int | None:
    """Seconds of "2026-11-27T02:20:51" in UTC; None for "Unknown" and "None"."""
    return None if text in ("Unknown", "None") else calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def duration(text: str) -> int:
    """Seconds of "[days-]hours:minutes:seconds"."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d\d):([0-5]\d):([0-5]\d)", text)
    assert found, text
    days, hours, minutes, seconds = (int(one or 0) for one in found.groups())
    assert hours < 24
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def megabytes(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP])", text)
    assert found, text
    return float(found[1]) * 1024 ** ("KMGTP".index(found[2]) - 1)


def resources(text: str) -> dict[str, str]:
    """Trackable resources: "cpu=4,mem=1G,node=1,gres/gpu=2"."""
    return dict(one.split("=", 1) for one in text.split(",")) if text else {}


def read_sacct(text: str) -> list[dict[str, Any]]:
    """Lines of `sacct --parsable2` with a header. The last column may have the delimiter, which is not marked."""
    head, *lines = text.splitlines()
    names = head.split("|")
    found = []
    for line in lines:
        row: dict[str, Any] = dict(zip(names, line.split("|", len(names) - 1), strict=True))
        assert STATES.fullmatch(row["State"])
        code, signal = map(int, row["ExitCode"].split(":"))
        row |= {name: moment(row[name]) for name in ("Submit", "Eligible", "Start", "End")}
        row |= {name: duration(row[name]) for name in ("Elapsed", "Timelimit")}
        row |= {"code": code, "signal": signal, "tres": resources(row["AllocTRES"]), "asked": resources(row["ReqTRES"])}
        assert megabytes(row["ReqMem"]) == megabytes(row["asked"]["mem"])
        found.append(row)
    return found


def read_swf(text: str) -> tuple[dict[str, list[str]], list[dict[str, int]]]:
    """Header by label, and jobs. Raises `AssertionError` for what the format does not allow."""
    header: dict[str, list[str]] = {}
    jobs: list[dict[str, int]] = []
    for line in text.splitlines():
        if line.startswith(";"):
            label, value = line[1:].split(":", 1)
            header.setdefault(label.strip(), []).append(value.strip())
            continue
        job = dict(zip(SWF, map(int, line.split()), strict=True))
        assert job["job"] == len(jobs) + 1, "jobs are counted from 1"
        assert job["submit"] >= (jobs[-1]["submit"] if jobs else 0), "lines are in the order of submission"
        assert job["status"] in (-1, 0, 1, 2, 3, 4, 5)
        assert job["preceding"] == -1 or 0 < job["preceding"] < job["job"], "a preceding job comes before"
        assert (job["think"] == -1) == (job["preceding"] == -1)
        assert all(job[name] >= -1 for name in SWF)
        assert all(job[name] >= 1 for name in ("user", "group", "application"))
        jobs.append(job)
    return header, jobs


def ending(one: ExportedAttempt) -> int | None:
    return None if one.ended_at is None or one.since is None else floor(one.ended_at)


@given(st.lists(attempts, max_size=8))
def test_another_reader_of_sacct_finds_what_was_exported(found: list[ExportedAttempt]) -> None:
    lines = ["|".join(SACCT_COLUMNS), *(sacct_line(one, cluster="lab", now=NOW) for one in found)]
    rows = read_sacct("\n".join(lines) + "\n")
    assert len(rows) == len(found)
    for row, one in zip(rows, found, strict=True):
        gpus = one.gpus * one.nodes
        assert row["Submit"] == floor(one.submitted_at)
        assert row["Start"] == (None if one.since is None else floor(one.since))
        if one.since is not None:
            assert row["End"] == ending(one)
            until = floor(NOW if one.ended_at is None else one.ended_at)
            assert row["Elapsed"] == max(0, until - floor(one.since))
            assert (int(row["tres"].get("gres/gpu", 0)), int(row["tres"]["cpu"])) == (gpus, one.cpus * one.nodes)
        assert int(row["asked"].get("gres/gpu", 0)) == gpus
        assert (row["Timelimit"], int(row["NNodes"])) == (one.time, one.nodes)
        assert megabytes(row["ReqMem"]) * 1024**2 == pytest.approx(one.memory * one.nodes, rel=0.005)
        assert (row["JobIDRaw"], row["code"], row["signal"]) == (str(one.job), one.exit_code, one.signal or 0)


def test_the_shredder_of_xdmod_gets_its_columns() -> None:
    """No header, 26 columns of which the last is the name, and times of which each is a pair of digits, as its patterns want."""
    line = sacct_line(changed(name="a|b", array=5, index=2, time=93_780), cluster="lab", now=NOW)
    (row,) = csv.reader(io.StringIO(line.replace('"', "")), delimiter="|")
    assert len(line.split("|", 25)) == 26
    assert (row[0], row[1], line.split("|", 25)[25]) == ("5_2", "7", "a|b")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", row[10])
    assert duration(row[23]) == 93_780
    assert resources(row[22])["gres/gpu"] == "2"


@given(st.lists(attempts, max_size=8))
def test_another_reader_of_swf_finds_what_was_exported(found: list[ExportedAttempt]) -> None:
    found = [ONE, *found]
    header, jobs = read_swf(written(found))
    begin = int(header["UnixStartTime"][0])
    assert header["Version"] == ["2.2"]
    assert int(header["MaxJobs"][0]) == len(jobs) == len(found)
    assert len(header["Queue"]) == int(header["MaxQueues"][0]) + 1  # queue 0 is that of interactive jobs
    for job, one in zip(jobs, sorted(found, key=lambda one: (one.submitted_at, one.job, one.attempt)), strict=True):
        gpus, since, until = one.gpus * one.nodes, one.since, ending(one)
        assert begin + job["submit"] == floor(one.submitted_at)
        assert job["wait"] == (-1 if since is None else floor(since) - floor(one.submitted_at))
        assert job["run"] == (-1 if since is None or until is None else until - floor(since))
        assert (job["asked_processors"], job["asked_time"]) == (gpus, one.time)
        assert job["processors"] == (-1 if since is None else gpus)
        assert (job["queue"] == 0) == (one.kind == "session")
    for name, of in (("user", "owner"), ("group", "account"), ("application", "name")):
        assert len({job[name] for job in jobs}) == len({getattr(one, of) for one in found})
