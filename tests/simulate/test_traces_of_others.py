"""Recorded workloads in other forms: Slurm's accounting, Philly's job log, Alibaba's lists, cells with sessions."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.simulate.notebooks.forming import named_sessions
from carrel.simulate.trace import TraceJob
from carrel.simulate.traces import read_trace
from carrel.simulate.traces.cells import names_sessions

SACCT = """\
JobID|User|Account|Submit|Start|End|TimelimitRaw|ReqTRES|AllocTRES|JobName
1|ada|physics|2026-11-02T10:00:00|2026-11-02T10:05:00|2026-11-02T11:05:00|120|billing=8,cpu=8,gres/gpu=2|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2|train
1.batch|ada|physics|2026-11-02T10:05:00|2026-11-02T10:05:00|2026-11-02T11:05:00||||batch
2_7|bob|optics|2026-11-02T09:59:00|2026-11-02T10:00:00|2026-11-02T10:00:30|UNLIMITED|cpu=1,gres/gpu=1||a|b
3|bob|optics|2026-11-02T10:00:00|2026-11-02T10:00:00|2026-11-02T10:00:30|10|cpu=1|cpu=1|no gpu
4|bob|optics|2026-11-02T10:00:00|Unknown|Unknown|10|cpu=1,gres/gpu=1||pending
5|bob|optics|2026-11-02T10:00:00|None|2026-11-02T10:01:00|10|cpu=1,gres/gpu=1||cancelled in line
6|bob|optics|2026-11-02T10:00:00|2026-11-02T10:00:01|2026-11-02T10:00:01|10|cpu=1,gres/gpu=1||so, at once
"""


def attempt(begin: str, end: str | None, *gpus: str) -> dict[str, Any]:
    return {"start_time": begin, "end_time": end, "detail": [{"ip": "m1", "gpus": list(gpus)}]}


def philly_job(user: str, submitted: str, *attempts: dict[str, Any]) -> dict[str, Any]:
    named = {"status": "Pass", "vc": "6214e9", "jobid": "application_1", "user": user}
    return {**named, "submitted_time": submitted, "attempts": attempts}


PHILLY = [
    philly_job(
        "ce2f4c",
        "2017-10-07 01:11:39",
        attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", "gpu0", "gpu1"),
        attempt("2017-10-07 01:13:30", "2017-10-07 02:13:30", "gpu0", "gpu1"),
    ),
    philly_job("x", "2017-10-07 01:11:00"),
    philly_job("x", "2017-10-07 01:11:00", attempt("2017-10-07 01:12:09", None, "gpu0")),
]
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-1,12000,16384,1,1000,,LS,Running,100,500,110
openb-pod-2,6000,12288,1,460,,LS,Running,150,300,150
openb-pod-3,6000,12288,0,0,,LS,Running,150,300,150
openb-pod-4,6000,12288,8,1000,V100M16|V100M32,BE,Pending,160,200,
"""
CELLS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,session,user\n"


def written(directory: Path, text: str) -> Path:
    path = directory / "trace"
    path.write_text(text)
    return path


def test_slurms_accounting(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, SACCT))
    assert list(trace.jobs) == [
        TraceJob(id=1, submitted=0.0, duration=30.0, gpus=1, user="bob", account="optics", name="a|b"),
        TraceJob(id=0, submitted=60.0, duration=3600.0, gpus=2, time=7200, user="ada", account="physics", name="train"),
    ]
    assert "Jobs without GPUs, left out: 1." in trace.notes
    assert "Jobs that never started or have not ended, left out: 3." in trace.notes


def test_the_job_log_of_philly(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, json.dumps(PHILLY, indent=1)))
    (job,) = trace.jobs
    assert job == TraceJob(id=0, submitted=0.0, duration=74.0 + 3600, gpus=2, user="ce2f4c", account="6214e9")
    assert set(trace.notes) == {"Jobs that never ran, left out: 1.", "Jobs without the end of an attempt, left out: 1."}


def test_the_tasks_of_alibaba(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, OPENB))
    assert [(job.submitted, job.duration, job.gpus) for job in trace.jobs] == [(0, 390, 1), (50, 150, 1)]
    assert set(trace.notes) == {
        "Tasks without GPUs, left out: 1.",
        "Tasks that were never scheduled, left out: 1.",
        "Tasks that asked for a part of a GPU and have a whole one here: 1.",
    }


def test_cells_that_say_of_which_session_they_are(tmp_path: Path) -> None:
    rows = "1,2,0,0,x,60,0,a,ada\n2,1,10,0,x,60,0,a,bob\n3,2,100,0,x,30,0,a,ada\n"
    path = written(tmp_path, CELLS + rows)
    assert names_sessions(path)
    sessions = named_sessions(read_trace(path, form="cells").jobs)
    assert [(session.gpus, [cell.id for cell in session.cells]) for session in sessions] == [(2, [1, 3]), (1, [2])]
    with pytest.raises(Invalid, match="line 2: session is empty"):
        read_trace(written(tmp_path, CELLS + "1,2,0,0,x,60,0,,ada\n"), form="cells")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SACCT.replace("|120|", "|120|more|more|").replace("|JobName", "|Name"), "line 2: there are 12 values"),
        (SACCT.replace("2026-11-02T10:05:00|2026", "yesterday|2026", 1), "line 2: Start is 'yesterday'"),
        (OPENB.replace("openb-pod-1,12000,16384,1,", "openb-pod-1,12000,16384,1.5,"), "line 2: num_gpu is '1.5'"),
        ("[1]", "job 1 of the list cannot be read"),
        ("[{]", "this is no JSON"),
        (json.dumps([{**PHILLY[0], "submitted_time": "soon"}]), "job 1 of the list cannot be read"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        read_trace(written(tmp_path, text))


@given(
    st.sampled_from(["sacct", "openb", "philly-log", "cells"]),
    st.text(alphabet='[]{}|,:\n"0123456789JobIDnull ', max_size=300),
    st.booleans(),
)
def test_whatever_a_file_holds_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, form: str, text: str, headed: bool
) -> None:
    heads = {"sacct": SACCT, "openb": OPENB, "cells": CELLS, "philly-log": ""}
    path = tmp_path_factory.mktemp("any") / "trace"
    path.write_text((heads[form].partition("\n")[0] + "\n" if headed else "") + text)
    with suppress(Invalid):
        assert read_trace(path, form=form).jobs
