"""Traces of other groups, which `benchmarks/` reads: Muri, Tiresias, Philly, Alibaba."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Cluster, TraceJob
from foreign_traces import FORMS, read_muri, read_trace

pytestmark = pytest.mark.slow

TRACES = Path(__file__).parents[1] / "data" / "traces"

SECONDS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"


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


def _written(directory: Path, text: str, name: str = "trace.txt") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_muri_is_recognised_and_has_durations_in_seconds() -> None:
    trace = read_trace(TRACES / "muri" / "trace3.csv")
    assert trace.name == "trace3.csv"
    assert trace.cluster == Cluster(nodes=8, gpus_per_node=8)
    assert len(trace.jobs) == 992
    assert trace.jobs[1] == TraceJob(id=1, submitted=1456.0, duration=926133.0, gpus=4, name="resnet18")


def test_muri_has_run_times_from_iterations_as_well() -> None:
    path = TRACES / "muri" / "trace3.csv"
    trace = read_muri(path, runtime="iterations")
    assert trace.jobs[1].duration == pytest.approx(1005573 * 921 * 1.015 / 1000)
    assert read_trace(path, form="muri-iterations") == trace
    assert trace.notes != read_muri(path).notes


def test_philly_is_recognised_and_begins_at_its_first_job(tmp_path: Path) -> None:
    path = tmp_path / "cluster.csv"
    header = "timestamp,duration,num_gpus,gpu_time,cluster"
    path.write_text(f"{header}\n2017-10-08 01:24:30,60.0,2,120.0,a\n2017-10-09 01:24:31,5.5,1,5.5,a\n")
    jobs = read_trace(path).jobs
    assert [(job.submitted, job.duration, job.gpus) for job in jobs] == [(0, 60, 2), (86401, 5.5, 1)]
    path.write_text(f"{header}\nyesterday,60.0,2,120.0,a\n")
    with pytest.raises(Invalid, match="line 2: timestamp is 'yesterday'"):
        read_trace(path)


def test_tiresias_is_recognised_and_in_seconds() -> None:
    trace = read_trace(TRACES / "tiresias" / "60_job.csv")
    assert len(trace.jobs) == 60
    assert trace.cluster is None
    assert trace.jobs[1] == TraceJob(id=1, submitted=30.0, duration=147.0, gpus=8, name="vgg11")


def test_jobs_come_in_the_order_of_submission_and_a_note_says_so(tmp_path: Path) -> None:
    path = _written(tmp_path, f"{SECONDS}\n0,1,9,1,a,5,0\n1,1,3,1,b,5,0\n2,1,3,1,c,5,0\n")
    trace = read_trace(path)
    assert [job.id for job in trace.jobs] == [1, 2, 0]
    assert trace.notes == ("The jobs of the file were not in the order of submission; here they are.",)


def test_the_job_log_of_philly(tmp_path: Path) -> None:
    trace = read_trace(_written(tmp_path, json.dumps(PHILLY, indent=1)))
    (job,) = trace.jobs
    assert job == TraceJob(id=0, submitted=0.0, duration=74.0 + 3600, gpus=2, user="ce2f4c", account="6214e9")
    assert set(trace.notes) == {"Jobs that never ran, left out: 1.", "Jobs without the end of an attempt, left out: 1."}


def test_the_tasks_of_alibaba(tmp_path: Path) -> None:
    trace = read_trace(_written(tmp_path, OPENB))
    assert [(job.submitted, job.duration, job.gpus) for job in trace.jobs] == [(0, 390, 1), (50, 150, 1)]
    assert set(trace.notes) == {
        "Tasks without GPUs, left out: 1.",
        "Tasks that were never scheduled, left out: 1.",
        "Tasks that asked for a part of a GPU and have a whole one here: 1.",
    }


@given(
    st.sampled_from(["openb", "philly-log"]),
    st.text(alphabet='[]{}|,:\n"0123456789JobIDnull ', max_size=300),
    st.booleans(),
)
def test_whatever_a_file_holds_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, form: str, text: str, headed: bool
) -> None:
    heads = {"openb": OPENB, "philly-log": ""}
    path = tmp_path_factory.mktemp("any") / "trace"
    path.write_text((heads[form].partition("\n")[0] + "\n" if headed else "") + text)
    with suppress(Invalid):
        assert read_trace(path, form=form).jobs


def test_the_forms_of_the_command_are_among_them() -> None:
    assert {"muri", "tiresias", "philly", "openb", "sacct", "swf"} <= FORMS.keys()
