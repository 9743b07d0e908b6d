"""What Slurm's own sacct writes of a job, and what `carrel report jobs` writes of the same: column by column."""

from datetime import UTC, datetime

import pytest

from carrel.core.exports import SACCT_COLUMNS, ExportedAttempt, sacct_line
from carrel.testing.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-engine")]

#: Of these the lab has other values or none: its users have no numbers, and its groups are accounts.
OTHERS = {"Group", "GID", "UID"}
MIB = 1024**2


def sacct(site, job):
    """The header and the lines of a job, by the names in the header."""
    asked = ("--jobs", str(job), "--allocations", "--duplicates", "--parsable2", "--format", ",".join(SACCT_COLUMNS))
    head, *lines = site.run("sacct", *asked, environ={"TZ": "UTC"}).out.splitlines()
    assert head == "|".join(SACCT_COLUMNS)
    return [dict(zip(SACCT_COLUMNS, line.split("|", len(SACCT_COLUMNS) - 1), strict=True)) for line in lines]


def told(site, job, state):
    """The same once accounting has heard all of it, of a job that has ended in this state."""

    def heard():
        # It may hear of the end before it hears of the rest.
        return [(line["State"].split()[0], line["Partition"]) for line in sacct(site, job)] == [(state, "main")]

    wait_until(heard, lambda: str(sacct(site, job)))
    return sacct(site, job)[0]


def moment(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def ours(real, **values):
    """Our line of the same job: moments are Slurm's, everything else is what was asked for and what happened."""
    placed = real["NodeList"] != "None assigned"
    facts = {
        "job": int(real["JobIDRaw"]), "attempt": 1, "kind": "task", "owner": real["User"], "account": real["Account"],
        "qos": real["QOS"], "partition": real["Partition"], "nodes": 1, "cpus": 1,
        "node": real["NodeList"] if placed else "", "on_cluster": False,
        "memory": 256 * MIB, "gpus": 0, "time": 600, "state": "COMPLETED", "depends": False, "followed": False,
        "submitted_at": moment(real["Submit"]), "since": moment(real["Start"]) if placed else None,
        "ended_at": moment(real["End"]), "stopped": 0.0, "memory_peak": 0,
    }  # fmt: skip
    line = sacct_line(ExportedAttempt(**{**facts, **values}), cluster=real["Cluster"], now=0)
    return dict(zip(SACCT_COLUMNS, line.split("|", len(SACCT_COLUMNS) - 1), strict=True))


def same(real, mine):
    # Slurm looks at a job a moment after its submission, and that may be in the next second.
    assert real["Eligible"] >= real["Submit"]
    real = {**real, "Eligible": real["Submit"]}
    shown = {name: value for name, value in mine.items() if name not in OTHERS}
    assert shown == {name: value for name, value in real.items() if name not in OTHERS}


def test_jobs_that_ran_have_the_same_line(site):
    jobs = {
        site.submit("sleep 1", "--time=90", "--mem=1536M", "--gres=gpu:2", "-c2", "--job-name=a|b é"): {
            "name": "a|b é", "time": 5400, "memory": 1536 * MIB, "gpus": 2, "cpus": 2,
        },
        site.submit("exit 3", "--time=1-02:03:00", "--mem=1000M", "--job-name=fails"): {
            "name": "fails", "time": 93_780, "memory": 1000 * MIB, "state": "FAILED", "exit_code": 3,
        },
        site.submit("kill -9 $$", "--time=10", "--mem=1G", "--job-name=killed"): {
            "name": "killed", "memory": 1024 * MIB, "state": "FAILED", "signal": 9,
        },
        site.submit("exit 0", "--time=10", "--nodes=2", "--gres=gpu:1", "--mem=256M", "--job-name=two"): {
            "name": "two", "nodes": 2, "gpus": 1,
        },
    }  # fmt: skip
    for job, values in jobs.items():
        real = told(site, job, values.get("state", "COMPLETED"))
        same(real, ours(real, **values))


def test_an_element_of_an_array_has_the_same_line(site):
    job = site.submit("exit 0", "--array=3", "--time=10", "--mem=256M", "--job-name=element")
    real = told(site, job, "COMPLETED")
    same(real, ours(real, name="element", array=job, index=3))


def test_a_job_that_was_cancelled_has_the_same_line_but_for_whom(site):
    job = site.submit("sleep 600", "--time=10", "--mem=256M", "--job-name=cancelled")
    site.wait_for(job, "RUNNING")
    site.run("scancel", str(job))
    real = told(site, job, "CANCELLED")
    assert real["State"].startswith("CANCELLED by ")
    same({**real, "State": "CANCELLED"}, ours(real, name="cancelled", state="CANCELLED"))


def test_a_job_that_was_cancelled_in_line_has_the_same_line(site):
    first = site.submit("sleep 600", "--time=10", "--exclusive", "--nodelist=node1")
    site.wait_for(first, "RUNNING")
    job = site.submit("true", "--time=10", "--mem=256M", "--nodelist=node1", "--gres=gpu:1", "--job-name=waited")
    wait_until(lambda: sacct(site, job))
    site.run("scancel", str(job))
    real = told(site, job, "CANCELLED")
    # Slurm shows a walltime only of jobs that it has looked at, and a start where it was fast.
    assert real["Start"] in ("None", real["End"])
    slurms = {name: real[name] for name in ("Timelimit", "Start")}
    same({**real, "State": "CANCELLED"}, {**ours(real, name="waited", gpus=1, state="CANCELLED"), **slurms})
