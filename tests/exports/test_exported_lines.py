"""Lines of `carrel report jobs`: what is written is read back the same, whatever names are in it."""

from __future__ import annotations

from datetime import UTC, datetime
from math import floor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.exports import SACCT_COLUMNS, ExportedAttempt, Numbers, SwfHeader, SwfWriter, anonymous, sacct_line
from carrel.core.exports.sacct import plain_name, slurm_duration, slurm_moment, slurm_size
from carrel.simulate.trace import TraceJob
from carrel.simulate.traces import read_trace

GIB = 1024**3
ONE = ExportedAttempt(
    job=7, attempt=1, kind="task", owner="ada", account="physics", qos="normal", partition="", name="train", node="node1",
    on_cluster=False,
    nodes=1, cpus=4, memory=GIB, gpus=2, time=5400, state="COMPLETED", exit_code=0, signal=None, depends=False, followed=False,
    submitted_at=1000.25, since=1010.5, ended_at=1075.75, stopped=0.0, memory_peak=3 * GIB,
)  # fmt: skip


def changed(**values: object) -> ExportedAttempt:
    return ExportedAttempt(**{**{name: getattr(ONE, name) for name in ONE.__slots__}, **values})  # type: ignore[arg-type]


def columns(attempt: ExportedAttempt, now: float = 2000.0) -> dict[str, str]:
    values = sacct_line(attempt, cluster="lab", now=now).split("|", len(SACCT_COLUMNS) - 1)
    return dict(zip(SACCT_COLUMNS, values, strict=True))


def test_a_line_of_sacct() -> None:
    tres = "billing=4,cpu=4,gres/gpu=2,mem=1G,node=1"
    assert sacct_line(ONE, cluster="lab", now=2000) == (
        "7|7|lab|lab|normal|physics|physics|65534|ada|65534|1970-01-01T00:16:40|1970-01-01T00:16:40|1970-01-01T00:16:50|"
        f"1970-01-01T00:17:55|00:01:05|0:0|COMPLETED|1|4|4|1G|{tres}|{tres}|01:30:00|node1|train"
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"state": "FAILED", "exit_code": 3}, {"State": "FAILED", "ExitCode": "3:0"}),
        ({"state": "FAILED", "exit_code": None, "signal": 9}, {"State": "FAILED", "ExitCode": "0:9"}),
        ({"state": "RUNNING", "ended_at": None}, {"State": "RUNNING", "End": "Unknown", "Elapsed": "00:16:30"}),
        ({"state": "CONFIGURING", "ended_at": None}, {"State": "RUNNING"}),
        ({"state": "SUSPENDED", "ended_at": None, "stopped": 90.0}, {"State": "SUSPENDED", "Elapsed": "00:15:00"}),
        # An attempt that was given up.
        ({"state": "RUNNING"}, {"State": "NODE_FAIL", "Elapsed": "00:01:05"}),
        ({"state": "PENDING", "attempt": 0, "since": None, "ended_at": None, "node": ""},
         {"State": "PENDING", "Start": "Unknown", "End": "Unknown", "AllocTRES": "", "NodeList": "None assigned"}),
        ({"state": "CANCELLED", "attempt": 0, "since": None, "node": ""},
         {"State": "CANCELLED", "Start": "None", "End": "1970-01-01T00:17:55", "AllocTRES": ""}),
        ({"array": 5, "index": 2}, {"JobID": "5_2", "JobIDRaw": "7"}),
        ({"nodes": 2, "gpus": 0}, {"NNodes": "2", "NCPUS": "8", "ReqMem": "2G", "AllocTRES": "billing=8,cpu=8,mem=2G,node=2"}),
        ({"depends": True}, {"Eligible": "Unknown"}),
        ({"partition": "gpu|x", "owner": "a|b", "name": "a|b"}, {"Partition": "gpu_x", "User": "a_b", "JobName": "a|b"}),
    ],
)  # fmt: skip
def test_what_columns_say(values: dict[str, object], said: dict[str, str]) -> None:
    found = columns(changed(**values))
    assert {name: found[name] for name in said} == said


@pytest.mark.parametrize(
    ("megabytes", "written"),
    [(64, "64M"), (1000, "1000M"), (1024, "1G"), (1536, "1.50G"), (2048, "2G"), (2**20, "1T"), (2**41, "2048P")],
)
def test_sizes_are_written_as_slurm_does(megabytes: int, written: str) -> None:
    assert slurm_size(megabytes * 1024**2) == written


@given(st.floats(min_value=0, max_value=253_402_300_799))
def test_moments_are_those_of_the_calendar(at: float) -> None:
    assert slurm_moment(at) == datetime.fromtimestamp(floor(at), UTC).strftime("%Y-%m-%dT%H:%M:%S").zfill(19)


def test_times_have_days_where_there_are_any() -> None:
    assert [slurm_duration(at) for at in (0, 59.9, 3600, 86_399, 93_780)] == [
        "00:00:00",
        "00:00:59",
        "01:00:00",
        "23:59:59",
        "1-02:03:00",
    ]


names = st.text(min_size=1, max_size=20) | st.text(alphabet="|a; \n\r\t\u2028\x85\0\x1c\"'=,é", min_size=1, max_size=20)
attempts = st.builds(
    changed,
    job=st.integers(1, 10**6),
    owner=names,
    account=names,
    name=names,
    qos=st.sampled_from(["normal", "batch"]),
    partition=st.sampled_from(["", "gpu"]),
    kind=st.sampled_from(["task", "session"]),
    gpus=st.integers(0, 8),
    nodes=st.integers(1, 3),
    time=st.integers(1, 10**7),
    submitted_at=st.floats(1e6, 1e6 + 1000),
    since=st.none() | st.floats(1e6 + 1000, 1e6 + 2000),
    ended_at=st.none() | st.floats(1e6 + 2000, 1e6 + 9000),
    state=st.sampled_from(["COMPLETED", "FAILED", "CANCELLED", "RUNNING"]),
)


def ran(found: list[ExportedAttempt]) -> list[ExportedAttempt]:
    """What a trace has: jobs with GPUs that began and have ended."""
    return [one for one in found if one.gpus and one.since is not None and one.ended_at is not None]


@given(st.lists(attempts, max_size=6), st.sampled_from(["sacct", "xdmod"]))
def test_what_is_written_for_slurms_readers_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, found: list[ExportedAttempt], form: str
) -> None:
    found = [ONE, *found]
    path = tmp_path_factory.mktemp("lines") / "trace"
    lines = [sacct_line(one, cluster="lab", now=2e6) for one in found]
    path.write_text("\n".join([*(["|".join(SACCT_COLUMNS)] if form == "sacct" else []), *lines]) + "\n", newline="\n")
    trace = read_trace(path)
    begin = min(floor(one.submitted_at) for one in ran(found))
    assert {job.id: job for job in trace.jobs} == {
        place: TraceJob(
            id=place,
            submitted=float(floor(one.submitted_at) - begin),
            duration=float(floor(one.ended_at or 0) - floor(one.since or 0)),
            gpus=one.gpus * one.nodes,
            time=one.time,
            user=columns(one)["User"] or "user",
            account=columns(one)["Account"],
            name=plain_name(one.name) or "job",
        )
        for place, one in enumerate(ran(found))
    }
    for one in found:
        if one.name.isprintable() and not one.name.endswith(" "):
            assert columns(one)["JobName"] == one.name


def written(found: list[ExportedAttempt], numbers: Numbers | None = None) -> str:
    """A file of SWF."""
    in_order = sorted(found, key=lambda one: (one.submitted_at, one.job, one.attempt))
    header = SwfHeader(
        computer="the lab\nof ours",
        jobs=len(found),
        begin=in_order[0].submitted_at,
        end=in_order[-1].submitted_at,
        nodes=2,
        gpus=8,
        queues=sorted({one.qos for one in found if not one.is_session}),
        partitions=sorted({one.partition for one in found}),
    )
    writer = SwfWriter(header, numbers)
    return "\n".join([*header.lines(), *map(writer.line, in_order)]) + "\n"


@given(st.lists(attempts, max_size=6))
def test_what_is_written_as_swf_is_read_back(tmp_path_factory: pytest.TempPathFactory, found: list[ExportedAttempt]) -> None:
    found = [ONE, *found]
    path = tmp_path_factory.mktemp("lines") / "trace"
    path.write_text(written(found), newline="\n")
    trace = read_trace(path)
    assert (trace.cluster.nodes, trace.cluster.gpus_per_node) == (2, 4)
    begin = min(floor(one.submitted_at) for one in found)
    assert sorted((job.submitted, job.duration, job.gpus, job.time) for job in trace.jobs) == sorted(
        (floor(one.submitted_at) - begin, floor(one.ended_at or 0) - floor(one.since or 0), one.gpus * one.nodes, one.time)
        for one in ran(found)
    )
    assert len({job.user for job in trace.jobs}) == len({one.owner for one in ran(found)})
    assert len({job.name for job in trace.jobs}) == len({one.name for one in ran(found)})


def test_lines_of_swf() -> None:
    first = changed(state="FAILED", followed=True)
    second = changed(attempt=2, submitted_at=first.ended_at, since=1100.0, ended_at=1200.0)
    session = changed(
        job=8, kind="session", qos="interactive", gpus=0, owner="bob", submitted_at=1080.0, since=1080.0, ended_at=None
    )
    text = written([second, session, first])
    assert text.splitlines()[:11] == [
        "; Version: 2.2",
        "; Computer: the lab of ours",
        "; Conversion: carrel report jobs --format swf",
        "; MaxJobs: 3",
        "; MaxRecords: 3",
        "; UnixStartTime: 1000",
        "; TimeZoneString: UTC",
        "; StartTime: Thu Jan  1 00:16:40 UTC 1970",
        "; EndTime: Thu Jan  1 00:18:00 UTC 1970",
        "; MaxNodes: 2",
        "; MaxProcs: 8",
    ]
    assert [line for line in text.splitlines() if not line.startswith(";")] == [
        "1 0 10 65 2 -1 1572864 2 5400 524288 0 1 1 1 1 1 -1 -1",
        "2 75 25 100 2 -1 1572864 2 5400 524288 1 1 1 1 1 1 1 0",
        "3 80 0 -1 0 -1 -1 0 5400 -1 -1 2 1 1 0 1 -1 -1",
    ]


def test_numbers_are_a_keys_own() -> None:
    mine, again, others = Numbers(b"k" * 32), Numbers(b"k" * 32), Numbers(b"l" * 32)
    assert mine.number("user", "ada") == again.number("user", "ada") == mine.number("user", "ada")
    assert (
        len({mine.number("user", "ada"), mine.number("user", "bob"), mine.number("account", "ada"), others.number("user", "ada")})
        == 4
    )


@given(st.lists(attempts, min_size=1, max_size=6), st.binary(min_size=32, max_size=32))
def test_nothing_of_a_name_is_left(found: list[ExportedAttempt], key: bytes) -> None:
    numbers = Numbers(key)
    hidden = [anonymous(one, numbers) for one in found]
    for hide in ("owner", "account", "name", "node"):
        assert all(getattr(one, hide).isdigit() for one in hidden)
        assert len({getattr(one, hide) for one in hidden}) == len({getattr(one, hide) for one in found})
    kept = [name for name in ONE.__slots__ if name not in ("owner", "account", "name", "node")]
    assert [[getattr(one, name) for name in kept] for one in hidden] == [[getattr(one, name) for name in kept] for one in found]


def test_numbers_of_a_key_in_swf() -> None:
    numbers = Numbers(b"k" * 32)
    (line,) = (line for line in written([ONE], numbers).splitlines() if not line.startswith(";"))
    assert line.split()[11:14] == [
        str(numbers.number(*of)) for of in (("user", "ada"), ("account", "physics"), ("name", "train"))
    ]


def test_files_without_a_header_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "lab.log"
    path.write_text(sacct_line(changed(name="a|b"), cluster="lab", now=0) + "\n")
    assert [job.name for job in read_trace(path).jobs] == ["a|b"]
