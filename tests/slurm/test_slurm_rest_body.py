"""What slurmrestd is told and what it answers: whole bodies, and what follows from each kind of answer."""

import json

import pytest

from carrel.engines.slurm.errors import SlurmDown, SlurmEmpty, SlurmFailed, SlurmSlow
from carrel.engines.slurm.listing import Garbage, SlurmJob
from carrel.engines.slurm.options import Notice, SlurmOptions, sbatch_arguments
from carrel.engines.slurm.rest_answers import NotDone, read_ended, read_job, read_ping, read_submitted
from carrel.engines.slurm.rest_body import LIMITS, Caller, passed_limits, submission
from carrel.engines.slurm.rest_http import read_address

pytestmark = pytest.mark.quick

CALLER = Caller(directory="/", host="login1", umask=0o027, priority=5, limits={"STACK": 8388608, "AS": None})


def body(options, *more, name="carrel.lab.7.1", output="/spool/7/1/slurm.log"):
    arguments = sbatch_arguments(options, name=name, comment="mnist", directory="/spool/7/1", output=output)
    found = submission([*arguments, *more], "#!/bin/bash\ntrue\n", environ={"PATH": "/usr/bin:/bin"}, caller=CALLER)
    return None if found is None else json.loads(found)


def test_a_body_says_all_that_sbatch_would_make_of_its_arguments():
    options = SlurmOptions(
        partition="gpu", qos="high", account="physics", time=90061, memory=16 * 1024**3, cpus=8, gpus=2, gpu_type="a100",
        nodes=1, constraint="nvlink&ib", exclusive="user", reservation="course", mail="a@example.org",
        mail_events=("END", "FAIL"), modules=("gcc",), variables={"SEED": "7"}, requeue=True,
        passed=("--nice=100", "--licenses=matlab:1", "--begin=now+1hour"),
    )  # fmt: skip
    assert body(options) == {
        "job": {
            "name": "carrel.lab.7.1",
            "comment": "mnist",
            "current_working_directory": "/spool/7/1",
            "standard_input": "/dev/null",
            "standard_output": "/spool/7/1/slurm.log",
            "open_mode": "append",
            "requeue": True,
            "partition": "gpu",
            "qos": "high",
            "account": "physics",
            "time_limit": "1-01:02:00",
            "nodes": "1-1",
            "cpus_per_task": "8",
            "minimum_cpus_per_node": "8",
            "memory_per_node": "16384M",
            "gres": "gpu:a100:2",
            "constraints": "nvlink&ib",
            "reservation": "course",
            "exclusive": "user",
            "mail_user": "a@example.org",
            "mail_type": "END,FAIL",
            "nice": "100",
            "licenses": "matlab:1",
            "begin_time": "now+1hour",
            "environment": {
                "PATH": "/usr/bin:/bin",
                "SLURM_SUBMIT_DIR": "/",
                "SLURM_SUBMIT_HOST": "login1",
                "SLURM_UMASK": "0027",
                "SLURM_PRIO_PROCESS": "5",
                "SLURM_CPUS_PER_TASK": "8",
                "SLURM_RLIMIT_STACK": "8388608",
                "SLURM_RLIMIT_AS": "18446744073709551615",
            },
        },
        "script": "#!/bin/bash\ntrue\n",
    }


@pytest.mark.parametrize(
    "options",
    [
        SlurmOptions(nodes=2),
        SlurmOptions(tasks_per_node=2),
        SlurmOptions(notice=Notice(signal="USR1", seconds=60)),
        *(
            SlurmOptions(passed=(option,))
            for option in ("--contiguous", "--nice", "--nodelist=node1", "--switches=1", "--no-kill")
        ),
    ],
)
def test_what_slurmrestd_says_otherwise_or_not_at_all_has_no_body(options):
    assert body(options) is None


def test_what_would_be_the_daemons_own_or_cannot_be_written_has_no_body():
    plain = SlurmOptions()
    assert body(plain) is not None
    assert body(plain, "--exclusive", "--exclusive=user") is None
    assert body(plain, "-N1") is None
    assert body(plain, output="slurm.log") is None
    assert body(plain, output="") is None
    assert body(plain, name="bytes \udcff") is None


@pytest.mark.parametrize(
    ("said", "but", "limits"),
    [
        ("ALL", "(null)", LIMITS),
        ("NONE", "(null)", ()),
        ("(null)", "MEMLOCK,NPROC", tuple(name for name in LIMITS if name not in ("MEMLOCK", "NPROC"))),
        ("core, STACK", "(null)", ("STACK", "CORE")),
    ],
)
def test_limits_are_those_that_the_site_passes_on(said, but, limits):
    assert passed_limits({"PropagateResourceLimits": said, "PropagateResourceLimitsExcept": but}) == limits


# --- answers: recorded from slurmrestd 22.05.8, but for what a broken one or a proxy might say ------------------------------


def errors(*errors, **more):
    return json.dumps({"meta": {}, "errors": list(errors), **more}).encode()


def code(number, text):
    return {"error_code": number, "error": text}


REFUSED = code(2066, "Invalid qos specification")
PARSING = code(9001, "Failure during parsing")


@pytest.mark.parametrize(
    ("status", "answer", "error"),
    [
        (500, errors(REFUSED), NotDone),
        (400, errors({"description": 'Disabled key: "contiguous"', "error_number": 1}, PARSING), NotDone),
        (400, b"Unable to parse query.", NotDone),
        (401, b"Authentication failure", NotDone),
        (404, b"Unable find requested URL. Please view /openapi/v3 for API reference.", NotDone),
        (500, errors(code(5004, "Socket timed out on send/recv operation")), SlurmSlow),
        (500, errors(code(5005, "Zero Bytes were transmitted or received")), SlurmDown),
        (500, errors(code(1800, "Unable to contact slurm controller (connect failure)")), SlurmDown),
        (500, errors(code(-1, "Unspecified error")), SlurmFailed),
        (500, errors(REFUSED, code(-1, "Unspecified error")), SlurmFailed),
        (500, errors(), SlurmFailed),
        (500, errors({"error_number": True, "error": 5}), SlurmFailed),
        (500, b"oops", Garbage),
        (502, b"<html>Bad Gateway</html>", Garbage),
        (200, b"", SlurmEmpty),
        (200, b"[]", Garbage),
        (200, errors(), Garbage),
        (200, errors(job_id=0), Garbage),
        (200, errors(job_id="7"), Garbage),
        (200, errors(job_id=7)[:-5], Garbage),
        (200, b"[" * 100_000, Garbage),
    ],
)
def test_only_a_plain_no_proves_that_there_is_no_job(status, answer, error):
    with pytest.raises(error) as told:
        read_submitted(status, answer)
    assert type(told.value) is error
    assert told.value.message
    assert status not in (401, 404) or told.value.away


def test_a_job_that_was_taken_with_a_remark_was_taken():
    assert read_submitted(200, errors(code(2042, "Job is in held state"), job_id=1066, step_id="BATCH")) == 1066


JOB = {"job_id": 7, "name": "carrel.lab.1.1", "user_name": "alice", "job_state": "PENDING", "state_reason": "Resources"}
UNKNOWN = errors({"description": "Unable to find JobId=7", "error_number": 2017, "error": "Invalid job id specified"}, jobs=[])


def test_one_job_is_known_by_number_and_name():
    assert read_job(200, errors(jobs=[JOB]), 7, "carrel.lab.1.1") == SlurmJob(
        id=7, name="carrel.lab.1.1", user="alice", state="PENDING", reason="Resources"
    )
    assert read_job(200, errors(jobs=[JOB]), 7, "carrel.lab.2.1") is None
    assert read_job(500, UNKNOWN, 7, "carrel.lab.1.1") is None
    for status, answer in ((200, errors(jobs=[])), (200, errors(jobs=[{**JOB, "job_id": 8}])), (200, errors(jobs={}))):
        with pytest.raises(Garbage):
            read_job(status, answer, 7, "carrel.lab.1.1")
    with pytest.raises(SlurmFailed):  # what a controller that is away looks like here
        read_job(500, errors({"error_number": -1, "error": "Unspecified error"}, jobs=[]), 7, "carrel.lab.1.1")


def test_what_is_over_has_ended():
    read_ended(200, errors())
    read_ended(500, UNKNOWN)
    with pytest.raises(SlurmDown):
        read_ended(500, errors({"error_number": 1800, "error": "Unable to contact slurm controller (connect failure)"}))


def test_a_daemon_whose_controller_does_not_answer_is_not_used():
    meta = {"Slurm": {"release": "22.05.8"}}
    assert read_ping(200, json.dumps({"meta": meta, "errors": [], "pings": [{"ping": "UP"}]}).encode()) == "22.05.8"
    for answer in ({"meta": meta, "pings": [{"ping": "DOWN"}]}, {"meta": {}, "pings": [{"ping": "UP"}]}, {"meta": meta}):
        with pytest.raises(Garbage):
            read_ping(200, json.dumps(answer).encode())


@pytest.mark.parametrize("text", ["unix:/run/rest", "http://localhost:6820", "http://[::1]:6820", "https://login1:6820"])
def test_an_address_is_written_as_it_was_read(text):
    assert str(read_address(text)) == text
