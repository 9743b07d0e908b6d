"""Recorded workloads are read completely, or not at all with an error that says where."""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Cluster, TraceJob
from carrel.simulate.traces import FORMS, read_trace

SWF = """\
; Version: 2.2
; MaxNodes: 4
; MaxProcs: 8

  1    0  5   60  2 -1 -1  4  120 -1 1  7  3 11 1 1 -1 -1
  2   10 -1   -1 -1 -1 -1  2  600 -1 5  7  3 11 1 1 -1 -1
  3   10  0 30.5  8 -1 -1 -1   -1 -1 1 -1 -1 -1 1 1 -1 -1
  4   20  0   40  0 -1 -1 -1   -1 -1 1 -1 -1 -1 1 1 -1 -1
"""
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


def _written(directory: Path, text: str, name: str = "trace.txt") -> Path:
    path = directory / name
    path.write_text(text)
    return path


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


@pytest.mark.parametrize("text", ["", "hello\n", "a,b,c\n1,2,3\n", "1 2 3\n"])
def test_a_file_that_looks_like_nothing_known_is_refused_with_all_forms(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid, match="does not begin like any trace") as raised:
        read_trace(_written(tmp_path, text))
    assert all(form in raised.value.remedy for form in FORMS)


def test_an_unknown_form_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no form of traces named 'slurm'") as raised:
        read_trace(tmp_path / "any.csv", form="slurm")
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


def test_slurms_accounting(tmp_path: Path) -> None:
    trace = read_trace(_written(tmp_path, SACCT))
    assert list(trace.jobs) == [
        TraceJob(id=1, submitted=0.0, duration=30.0, gpus=1, user="bob", account="optics", name="a|b"),
        TraceJob(id=0, submitted=60.0, duration=3600.0, gpus=2, time=7200, user="ada", account="physics", name="train"),
    ]
    assert "Jobs without GPUs, left out: 1." in trace.notes
    assert "Jobs that never started or have not ended, left out: 3." in trace.notes


def test_jobs_come_in_the_order_of_submission_and_a_note_says_so(tmp_path: Path) -> None:
    first, *others = [line for line in SWF.splitlines() if line.split()[-1:] == ["-1"]]
    trace = read_trace(_written(tmp_path, "\n".join([*others, first])))
    assert [job.id for job in trace.jobs] == [1, 3]
    assert "The jobs of the file were not in the order of submission; here they are." in trace.notes


@pytest.mark.parametrize("text", ["; MaxProcs: 8\n", SACCT.partition("\n")[0]])
def test_a_file_without_jobs_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid, match=r"has no jobs"):
        read_trace(_written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SACCT.replace("|120|", "|120|more|more|").replace("|JobName", "|Name"), "line 2: there are 12 values"),
        (SACCT.replace("2026-11-02T10:05:00|2026", "yesterday|2026", 1), "line 2: Start is 'yesterday'"),
    ],
)
def test_what_cannot_be_read_of_slurm_is_an_error_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        read_trace(_written(tmp_path, text))


@given(st.sampled_from(["sacct", "xdmod", "swf"]), st.text(alphabet='|,:;\n"0123456789JobIDnull -', max_size=300), st.booleans())
def test_whatever_a_file_holds_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, form: str, text: str, headed: bool
) -> None:
    path = tmp_path_factory.mktemp("any") / "trace"
    path.write_text((SACCT.partition("\n")[0] + "\n" if headed and form == "sacct" else "") + text)
    with suppress(Invalid):
        assert read_trace(path, form=form).jobs
