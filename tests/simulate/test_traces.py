"""Recorded workloads are read completely, or not at all with an error that says where."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Cluster, TraceJob
from carrel.simulate.traces import FORMS, read_muri, read_trace

TRACES = Path(__file__).parents[1] / "data" / "traces"

SECONDS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"
MILLISECONDS = "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time"

SWF = """\
; Version: 2.2
; MaxNodes: 4
; MaxProcs: 8

  1    0  5   60  2 -1 -1  4  120 -1 1  7  3 11 1 1 -1 -1
  2   10 -1   -1 -1 -1 -1  2  600 -1 5  7  3 11 1 1 -1 -1
  3   10  0 30.5  8 -1 -1 -1   -1 -1 1 -1 -1 -1 1 1 -1 -1
  4   20  0   40  0 -1 -1 -1   -1 -1 1 -1 -1 -1 1 1 -1 -1
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


def test_muri_knows_no_other_run_times() -> None:
    with pytest.raises(Invalid, match=r"no run time 'wishes'.* Choose duration or iterations\."):
        read_muri(TRACES / "muri" / "trace3.csv", runtime="wishes")  # type: ignore[arg-type]


def test_jobs_that_are_submitted_together_keep_the_order_of_the_file() -> None:
    trace = read_trace(TRACES / "muri" / "trace3_pr.csv")
    assert {job.submitted for job in trace.jobs} == {0.0}
    assert [job.id for job in trace.jobs] == list(range(992))


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


def test_cells_are_read_when_they_are_named(tmp_path: Path) -> None:
    path = _written(tmp_path, f"{SECONDS}\n0,8,0,1000,resnet50,1020,0\n1,1,60,1000,resnet50,180,60\n")
    assert [job.name for job in read_trace(path).jobs] == ["resnet50", "resnet50"]
    cells = read_trace(path, form="cells")
    assert cells.jobs == [
        TraceJob(id=0, submitted=0.0, duration=1020.0, gpus=8, name="cell"),
        TraceJob(id=1, submitted=60.0, duration=180.0, gpus=1, name="cell"),
    ]
    assert "one cell" in cells.notes[0]


def test_swf_counts_processors_as_gpus(tmp_path: Path) -> None:
    trace = read_trace(_written(tmp_path, SWF))
    assert trace.cluster == Cluster(nodes=4, gpus_per_node=2)
    assert trace.jobs == [
        TraceJob(id=1, submitted=0.0, duration=60.0, gpus=4, time=120, user="user-7", account="group-3", name="executable-11"),
        TraceJob(id=3, submitted=10.0, duration=30.5, gpus=8),
    ]
    assert trace.notes == (
        "Processors count as GPUs.",
        "Jobs without a run time, left out: 1.",
        "Jobs without processors, left out: 1.",
    )


def test_swf_may_be_packed_whatever_its_name(tmp_path: Path) -> None:
    plain = _written(tmp_path, SWF, "trace.swf")
    (tmp_path / "packed").mkdir()
    packed = tmp_path / "packed" / "trace.swf"
    packed.write_bytes(gzip.compress(SWF.encode()))
    assert read_trace(packed) == read_trace(plain)


def test_swf_is_recognised_without_comments(tmp_path: Path) -> None:
    lines = [line for line in SWF.splitlines() if not line.startswith(";")]
    trace = read_trace(_written(tmp_path, "\n".join(lines)))
    assert [job.id for job in trace.jobs] == [1, 3]
    assert trace.cluster is None


@pytest.mark.parametrize("nodes", ["", "; MaxNodes: 3\n", "; MaxNodes: unknown\n"])
def test_swf_without_even_nodes_takes_each_processor_for_one(tmp_path: Path, nodes: str) -> None:
    lines = "".join(f"{line}\n" for line in SWF.splitlines() if "MaxNodes" not in line)
    trace = read_trace(_written(tmp_path, nodes + lines))
    assert trace.cluster == Cluster(nodes=8, gpus_per_node=1)
    assert "Each of the 8 processors is taken to be a node." in trace.notes


def test_bytes_that_are_no_text_are_harmless_in_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "trace.swf"
    path.write_bytes(b"; Acknowledge: Universit\xe4t\n" + SWF.encode())
    assert len(read_trace(path).jobs) == 2


def test_jobs_come_in_the_order_of_submission_and_a_note_says_so(tmp_path: Path) -> None:
    path = _written(tmp_path, f"{SECONDS}\n0,1,9,1,a,5,0\n1,1,3,1,b,5,0\n2,1,3,1,c,5,0\n")
    trace = read_trace(path)
    assert [job.id for job in trace.jobs] == [1, 2, 0]
    assert trace.notes == ("The jobs of the file were not in the order of submission; here they are.",)


@pytest.mark.parametrize(
    ("row", "fact"),
    [
        ("1,2,3,4,a,5", "'1,2,3,4,a,5' has 6 values. Write 7"),
        ("1,two,3,4,a,5,6", "num_gpu is 'two'. Write a number."),
        ("1,1_0,3,4,a,5,6", "num_gpu is '1_0'. Write a number."),
        ("1,2.5,3,4,a,5,6", "num_gpu is '2.5'. Write a whole number, 0 or more."),
        ("1,-2,3,4,a,5,6", "num_gpu is '-2'. Write a whole number, 0 or more."),
        ("1,2,-3,4,a,5,6", "submit_time is '-3'. Write 0 or more."),
        ("1,2,3,4,a,nan,6", "duration is 'nan'. Write a number."),
        ("1,2,3,4,a,inf,6", "duration is 'inf'. Write a number."),
        ("1,2,3,4,a,,6", "duration is ''. Write a number."),
        ("0,2,3,4,a,5,6", "there is a job 0 again; the first is on line 2. Give each job a number of its own."),
    ],
)
@pytest.mark.parametrize("form", ["tiresias", "cells"])
def test_a_row_that_cannot_be_read_is_an_error_with_its_line(tmp_path: Path, form: str, row: str, fact: str) -> None:
    path = _written(tmp_path, f"{SECONDS}\n0,1,0,1,a,5,0\n\n{row}\n")
    with pytest.raises(Invalid) as raised:
        read_trace(path, form=form)
    assert f"{path}, line 4: {fact}" in str(raised.value)


@pytest.mark.parametrize(
    ("row", "fact"),
    [
        ("1,2,3,4.5,a,16,5,6,7", "iterations is '4.5'"),
        ("1,2,3,4,a,16,5,6,-7", "iteration_time is '-7'"),
        ("1,2,3,4,a,16,,6,7", "duration is ''"),
    ],
)
@pytest.mark.parametrize("form", ["muri", "muri-iterations"])
def test_both_run_times_of_muri_must_be_readable(tmp_path: Path, form: str, row: str, fact: str) -> None:
    path = _written(tmp_path, f"{MILLISECONDS}\n{row}\n")
    with pytest.raises(Invalid) as raised:
        read_trace(path, form=form)
    assert f"{path}, line 2: {fact}" in str(raised.value)


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("5 0 0", "'5 0 0' has 3 fields. Write 18 numbers"),
        ("5 0 0 60 2 -1 -1 4 120 -1 1 7 3 11 1 1 -1 x", "think time is 'x'. Write a number."),
        ("5 0 0 60 2 -1 -1 4.5 120 -1 1 7 3 11 1 1 -1 -1", "requested processors is '4.5'. Write a whole number"),
        ("5 -9 0 60 2 -1 -1 4 120 -1 1 7 3 11 1 1 -1 -1", "submit time is '-9'. Write 0 or more."),
        ("1 0 0 60 2 -1 -1 4 120 -1 1 7 3 11 1 1 -1 -1", "there is a job 1 again; the first is on line 5."),
    ],
)
def test_a_line_of_swf_that_cannot_be_read_is_an_error_with_its_line(tmp_path: Path, line: str, fact: str) -> None:
    path = _written(tmp_path, f"{SWF}{line}\n")
    with pytest.raises(Invalid) as raised:
        read_trace(path)
    assert f"{path}, line 9: {fact}" in str(raised.value)


@pytest.mark.parametrize("form", ["muri", "muri-iterations", "tiresias", "cells"])
def test_a_file_without_the_columns_of_its_form_is_refused(tmp_path: Path, form: str) -> None:
    path = _written(tmp_path, "job_id,num_gpu,submit_time\n0,1,0\n")
    with pytest.raises(Invalid, match=r"line 1: the header .* has no .*duration.* It needs job_id"):
        read_trace(path, form=form)


@pytest.mark.parametrize("text", [SECONDS, MILLISECONDS, "; MaxProcs: 8\n"])
def test_a_file_without_jobs_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid, match=r"has no jobs"):
        read_trace(_written(tmp_path, text))


@pytest.mark.parametrize("text", ["", "hello\n", "a,b,c\n1,2,3\n", "1 2 3\n"])
def test_a_file_that_looks_like_nothing_known_is_refused_with_all_forms(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid, match="does not begin like any trace") as raised:
        read_trace(_written(tmp_path, text))
    assert all(form in raised.value.remedy for form in FORMS)


def test_an_unknown_form_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(Invalid, match="no form of traces named 'slurm'") as raised:
        read_trace(TRACES / "tiresias" / "60_job.csv", form="slurm")
    assert all(form in raised.value.remedy for form in FORMS)


def test_a_file_that_is_not_there_or_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read: No such file"):
        read_trace(tmp_path / "missing.csv")
    with pytest.raises(Invalid, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
    broken = tmp_path / "broken.swf.gz"
    broken.write_bytes(gzip.compress(SWF.encode())[:60])
    with pytest.raises(Invalid, match="is a broken gzip file"):
        read_trace(broken)
