"""What Slurm answers becomes values, or an error that says that nothing follows from it."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.job import REASONS, JobState
from carrel.engines.slurm.listing import (
    SACCT_FIELDS,
    Garbage,
    SlurmJob,
    find,
    parse_json,
    parse_records,
    parse_sacct,
    parse_squeue,
    parse_submitted,
    slurm_name,
    squeue_format,
)
from carrel.engines.slurm.numbers import indices_text, read_numbers
from carrel.engines.slurm.states import STATES, end_of, has_ended, is_live, waits_for

pytestmark = pytest.mark.quick

ANSWERS = Path(__file__).parent / "answers"
MARK = "m7Qx2"
BAD = "bad|na me UserId=root(0) JobState=COMPLETED"


def answer(name):
    return (ANSWERS / name).read_text()


#: name -> state, reason (None: not told by sacct), what it means, exit code, signal
EXPECTED = {
    "timeout": ("TIMEOUT", "TimeLimit", JobState.TIMEOUT, "TimeLimit"),
    "good": ("COMPLETED", "None", JobState.COMPLETED, "Completed"),
    BAD: ("FAILED", "NonZeroExitCode", JobState.FAILED, "NonZeroExitCode"),
    "cancelled-running": ("CANCELLED", "None", JobState.CANCELLED, "Cancelled"),
    "cancelled-pending": ("CANCELLED", "BeginTime", JobState.CANCELLED, "Cancelled"),
    "low": ("PREEMPTED", "None", JobState.PREEMPTED, "Preempted"),
    "lost": ("NODE_FAIL", "NodeDown", JobState.NODE_FAIL, "NodeLost"),
    "never-killed": ("CANCELLED", "DependencyNeverSatisfied", JobState.CANCELLED, "Cancelled"),
    "running": ("RUNNING", "None", None, None),
    "high": ("RUNNING", "None", None, None),
    "suspended": ("SUSPENDED", "None", None, None),
    "never": ("PENDING", "DependencyNeverSatisfied", None, None),
}


def one(jobs, name):
    (job,) = (job for job in jobs if job.name == name)
    return job


@pytest.mark.parametrize(
    "listing", [parse_squeue(answer("squeue"), MARK), parse_json(answer("squeue.json"))], ids=["text", "json"]
)
@pytest.mark.parametrize("name", EXPECTED)
def test_squeue_is_read(listing, name):
    state, reason, ours, code = EXPECTED[name]
    job = one(listing, name)
    assert (job.state, job.reason) == (state, reason)
    assert job.id == json.loads(answer("numbers.json"))[name]
    end = end_of(job)
    assert (end.state, end.reason.code) == (ours, code) if ours else end is None
    assert is_live(job) is (ours is None)
    assert job.user == (
        "games" if name in ("cancelled-running", "cancelled-pending", "low") else "news" if name == "high" else "root"
    )
    assert job.nodes == {"high": "node4", "low": "node4", "lost": "node2", "suspended": "node3"}.get(name, job.nodes)


def test_lines_in_the_names_of_jobs_are_no_jobs():
    listing = parse_squeue(answer("squeue"), MARK)
    assert {job.id for job in listing} >= set(json.loads(answer("numbers.json")).values())
    assert one(listing, "good").id != 1
    assert not find(listing, "carrel.lab.1.1")
    assert not find(listing, "carrel.lab.8.1")
    assert not find(parse_json(answer("squeue.json")), "carrel.lab.8.1")


def test_elements_that_wait_together_are_listed_each():
    number = json.loads(answer("numbers.json"))["waiting-array"]
    expected = [f"{number}_{index}" for index in (1, *range(10, 201, 2))]
    for jobs in (parse_squeue(answer("squeue"), MARK), parse_json(answer("squeue.json")), parse_sacct(answer("sacct"))):
        assert [job.shown for job in jobs if job.name == "waiting-array"] == expected
    (one,) = find(parse_squeue(answer("squeue"), MARK), "carrel.lab.array.ab12", "root", task=12)
    assert (one.id, one.task, one.state) == (number, 12, "PENDING")
    assert not find(parse_squeue(answer("squeue"), MARK), "carrel.lab.array.ab12", "root", task=11)


@pytest.mark.parametrize(
    "text", ["", "12_", "12_[]", "12_[1-]", "12_[3-1]", "12_[1,2...]", "12_[1-9:0]", "12_[0-99999999]", "a", "12_x"]
)
def test_a_list_of_elements_that_was_cut_short_is_no_number(text):
    with pytest.raises(ValueError, match="number|list"):
        read_numbers(text)


@given(st.sets(st.integers(0, 4_000_000), min_size=1, max_size=60))
def test_indices_are_written_as_slurm_reads_them(indices):
    assert read_numbers(f"7_[{indices_text(list(indices))}]") == [(7, index) for index in sorted(indices)]


def test_a_job_of_ours_is_known_by_its_comment_alone():
    number = json.loads(answer("numbers.json"))["ours"]
    for listing in (
        parse_squeue(answer("squeue"), MARK), parse_squeue(answer("squeue-job"), MARK), parse_json(answer("squeue.json")),
    ):  # fmt: skip
        (job,) = find(listing, "carrel.lab.9.1", "root")
        assert (job.id, job.name) == (number, "ours")
        assert not find(listing, "carrel.lab.9.1", "alice")
    ours = SlurmJob(id=7, state="RUNNING", name="train", comment="carrel.lab.7.1")
    # Whoever calls a task like one of ours takes nobody's place.
    other = SlurmJob(id=8, state="RUNNING", name="carrel.lab.7.1", comment="")
    assert find([ours, other], "carrel.lab.7.1") == (ours,)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train", "train"),
        ("My task (3)", "My task (3)"),
        ("a,b|c\nd", "a_b_c_d"),
        ("modèle", "mod_le"),
        ("100%A 'x' \"y\" `z` \\", "100_A _x_ _y_ _z_ _"),
        ("", "task"),
        (" \t", "_"),
        ("x" * 300, "x" * 200),
    ],
)
def test_a_tasks_name_becomes_one_of_slurms(name, expected):
    assert slurm_name(name) == expected


@given(st.text())
def test_no_name_of_a_task_is_taken_for_something_else(name):
    found = slurm_name(name)
    assert found
    assert found.isprintable()
    assert len(found.encode()) <= 200
    assert not set(found) & set(",|%\"'")
    assert slurm_name(found) == found


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in ("never", "running")])
def test_sacct_is_read(name):
    state, _, ours, code = EXPECTED[name]
    number = json.loads(answer("numbers.json"))[name]
    (job,) = (job for job in parse_sacct(answer("sacct")) if job.id == number)
    assert job.state == state
    assert (job.name, job.directory) == (name, "/site/shared") if "|" not in name else name.startswith(job.name)
    end = end_of(job)
    assert (end.state, end.reason.code) == (ours, code) if ours else end is None
    assert (job.exit_code, job.signal) == ({BAD: 3}.get(name, 0), 0)


def test_a_name_with_a_line_end_makes_an_answer_of_sacct_garbage():
    with pytest.raises(Garbage):
        parse_sacct(answer("sacct-two-lines"))


def test_sacct_says_who_cancelled():
    job = one(parse_sacct(answer("sacct")), "cancelled-running")
    assert (job.state, job.cancelled_by) == ("CANCELLED", "0")
    assert "by the user with the number 0" in end_of(job).reason.message


def test_a_requeued_job_has_several_lines():
    states = [job.state for job in parse_sacct(answer("sacct")) if job.name == "requeued"]
    assert len(states) == 2
    assert states[0] == "NODE_FAIL"
    assert states[1] in ("PENDING", "RUNNING")


def test_sacct_json_is_read():
    jobs = parse_json(answer("sacct.json"), accounting=True)
    assert one(jobs, BAD).state == "FAILED"
    assert one(jobs, "killed").signal == 9
    assert one(jobs, "cancelled-running").cancelled_by == "root"
    assert one(jobs, "timeout").state == "TIMEOUT"
    assert parse_json(answer("sacct-nothing.json"), accounting=True) == ()


def test_nodes_and_partitions_are_read():
    nodes = parse_records(answer("scontrol-node"), "NodeName")
    assert [node["NodeName"] for node in nodes] == ["node1", "node2", "node3", "node4"]
    assert (nodes[0]["CPUTot"], nodes[0]["RealMemory"], nodes[0]["Gres"]) == ("8", "16000", "gpu:fake:4")
    assert [part["PartitionName"] for part in parse_records(answer("scontrol-partition"), "PartitionName")] == ["main", "debug"]


#: As the documentation of the versions has it (slurm.schedmd.com/rest_api.html, v0.0.40 job_info; data_parser, dbv0.0.40).
NEWER = {
    "job_id": 7,
    "name": "carrel.lab.7.1",
    "user_name": "alice",
    "job_state": ["RUNNING"],
    "state_reason": "None",
    "nodes": "node[1-2]",
    "start_time": {"set": True, "infinite": False, "number": 1795323095},
    "exit_code": {
        "status": ["SUCCESS"],
        "return_code": {"set": True, "infinite": False, "number": 0},
        "signal": {"id": {"set": False, "infinite": False, "number": 0}, "name": ""},
    },
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {"state": "RUNNING", "starts_at": 1795323095, "nodes": "node[1-2]"}),
        ({"job_state": ["COMPLETED", "COMPLETING"]}, {"state": "COMPLETING"}),
        ({"job_state": ["PENDING"], "start_time": {"set": False, "infinite": False, "number": 0}}, {"starts_at": None}),
        (
            {
                "job_state": ["FAILED"],
                "exit_code": {
                    "status": ["ERROR"],
                    "return_code": {"set": True, "infinite": False, "number": 3},
                    "signal": {"id": {"set": False, "infinite": False, "number": 0}, "name": ""},
                },
            },
            {"state": "FAILED", "exit_code": 3, "signal": 0},
        ),
        (
            {
                "job_state": ["FAILED"],
                "exit_code": {
                    "status": ["SIGNALED"],
                    "return_code": {"set": False, "infinite": False, "number": 0},
                    "signal": {"id": {"set": True, "infinite": False, "number": 9}, "name": "Killed"},
                },
            },
            {"state": "FAILED", "exit_code": 0, "signal": 9},
        ),
    ],
)
def test_the_json_of_newer_versions_is_read(change, expected):
    (job,) = parse_json(json.dumps({"jobs": [{**NEWER, **change}], "errors": [], "meta": {}}))
    assert {name: getattr(job, name) for name in expected} == expected


def test_the_accounting_json_of_newer_versions_is_read():
    job = {
        "job_id": 7,
        "name": "carrel.lab.7.1",
        "user": "alice",
        "state": {"current": ["CANCELLED"], "reason": "None"},
        "kill_request_user": "bob",
        "exit_code": NEWER["exit_code"],
        "nodes": "None assigned",
        "time": {"start": 1795323095},
    }
    (found,) = parse_json(json.dumps({"jobs": [job], "errors": []}), accounting=True)
    assert (found.state, found.cancelled_by, found.nodes, found.starts_at) == ("CANCELLED", "bob", "", 1795323095)


# --- what is not an answer --------------------------------------------------------------------------------------------------

PARSERS = {
    "squeue": lambda text: parse_squeue(text, MARK),
    "sacct": parse_sacct,
    "squeue.json": parse_json,
    "sacct.json": lambda text: parse_json(text, accounting=True),
    "scontrol-node": lambda text: parse_records(text, "NodeName"),
    "submitted": parse_submitted,
}


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
@pytest.mark.parametrize(
    "text", ["", "\n", "slurm_load_jobs error: x\n", "{}", "null", "[]", '{"jobs": 3}', '{"jobs": [7]}', "0" * 400]
)
def test_something_else_is_garbage(parser, text):
    with pytest.raises(Garbage):
        parser(text)


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
@given(st.text())
def test_no_text_makes_a_parser_fail_in_another_way(parser, text):
    with suppress(Garbage):
        parser(text)


@pytest.mark.parametrize("name", [name for name in PARSERS if name != "submitted"])
@given(data=st.data())
def test_no_damaged_answer_makes_a_parser_fail_in_another_way(name, data):
    text = answer(name)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 200)))
    damaged = text[:start] + data.draw(st.text(max_size=20)) + text[end:]
    with suppress(Garbage):
        PARSERS[name](damaged)


_KEYS = [*NEWER, "state", "current", "set", "number", "time", "start", "association", "user", "signal", "id"]
_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), children, max_size=6),
    max_leaves=12,
)


@given(job=_ANY_JSON, accounting=st.booleans())
def test_no_json_makes_a_parser_fail_in_another_way(job, accounting):
    with suppress(Garbage):
        parse_json(json.dumps({"jobs": [job]}), accounting=accounting)


words = st.from_regex(r"[A-Za-z0-9(),\[\]-]{1,12}", fullmatch=True)
free = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20)
jobs = st.builds(
    SlurmJob,
    id=st.integers(0, 10**12),
    state=st.sampled_from(sorted(STATES)),
    reason=words,
    nodes=words.filter(lambda word: word not in ("None", "n/a")),
    user=words,
    starts_at=st.none() | st.integers(0, 10**12),
    name=free,
    comment=free.filter(lambda text: text != "(null)"),
)


@given(st.lists(jobs, max_size=5), st.text(max_size=30))
def test_a_listing_says_what_was_written(listing, noise):
    lines = [squeue_format(MARK).replace("%i|%T|%r|%N|%S|%u|%k|", "JOBID|STATE|REASON|NODELIST|START_TIME|USER|COMMENT|")]
    lines += [
        "|".join((MARK, str(job.id), job.state, job.reason, job.nodes, str(job.starts_at or "N/A"), job.user, job.comment))
        + f"|~{MARK}|{job.name}"
        for job in listing
    ]
    # Whatever stands between the lines came out of somebody's name.
    text = "".join(f"{line}\n" for line in lines) + (f"x{noise}" if MARK not in noise else "")
    expected = tuple(job if job.starts_at else type(job)(**{**_dict(job), "starts_at": None}) for job in listing)
    assert parse_squeue(text, MARK) == expected


def _dict(job):
    return {name: getattr(job, name) for name in type(job).__dataclass_fields__}


@given(st.lists(jobs, max_size=5), st.integers(0, 255), st.integers(0, 64), st.none() | st.integers(0, 65535))
def test_accounting_says_what_was_written(listing, code, signal, by):
    lines = ["|".join(SACCT_FIELDS)]
    for job in listing:
        state = f"{job.state} by {by}" if by is not None else job.state
        start = "Unknown" if job.starts_at is None else str(job.starts_at)
        lines.append(
            "|".join((str(job.id), state, f"{code}:{signal}", job.reason, job.nodes, start, job.user, job.name, "/spool/1"))
        )
    found = parse_sacct("".join(f"{line}\n" for line in lines))
    assert [(job.id, job.state, job.name, job.starts_at) for job in found] == [
        (job.id, job.state, job.name.partition("|")[0], job.starts_at) for job in listing
    ]
    assert all((job.directory == "/spool/1") is ("|" not in one.name) for job, one in zip(found, listing, strict=True))
    assert all((job.exit_code, job.signal, job.cancelled_by) == (code, signal, "" if by is None else str(by)) for job in found)


# --- what states mean -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(STATES))
@given(reason=words, code=st.integers(0, 255), signal=st.integers(0, 64))
def test_every_state_is_live_or_an_end_with_a_reason(state, reason, code, signal):
    job = SlurmJob(id=7, state=state, reason=reason, exit_code=code, signal=signal)
    end = end_of(job)
    assert has_ended(job) is (end is not None) is not is_live(job)
    if end is not None:
        assert end.state.ended
        assert end.reason.code in REASONS
        assert "7" in end.reason.message
    else:
        assert "7" in waits_for(job)


@given(st.from_regex(r"[A-Z][A-Z_]{2,20}", fullmatch=True).filter(lambda word: word not in STATES))
def test_a_state_that_nobody_knows_is_neither(state):
    job = SlurmJob(id=7, state=state)
    assert not has_ended(job)
    assert not is_live(job)
    assert end_of(job) is None


@pytest.mark.parametrize(
    ("state", "ours"),
    [
        ("OUT_OF_MEMORY", JobState.OUT_OF_MEMORY),
        ("BOOT_FAIL", JobState.NODE_FAIL),
        ("NODE_FAIL", JobState.NODE_FAIL),
        ("TIMEOUT", JobState.TIMEOUT),
        ("DEADLINE", JobState.TIMEOUT),
        ("PREEMPTED", JobState.PREEMPTED),
        ("REVOKED", JobState.CANCELLED),
    ],
)
def test_ends_of_slurm_are_ours(state, ours):
    assert end_of(SlurmJob(id=7, state=state)).state is ours


@pytest.mark.parametrize(
    ("job", "of_no_script"),
    [
        (SlurmJob(id=7, state="COMPLETED"), True),
        (SlurmJob(id=7, state="FAILED"), True),
        (SlurmJob(id=7, state="FAILED", exit_code=1), False),
        (SlurmJob(id=7, state="FAILED", signal=9), False),
        (SlurmJob(id=7, state="FAILED", reason="BadConstraints"), False),
        (SlurmJob(id=7, state="FAILED", reason="JobLaunchFailure"), False),
        (SlurmJob(id=7, state="CANCELLED"), False),
    ],
)
def test_an_end_that_a_script_of_ours_never_has_without_a_claim(job, of_no_script):
    assert end_of(job).of_no_script is of_no_script
