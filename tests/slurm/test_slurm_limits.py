"""Limits of Slurm's own are explained in words, with the number where the accounting database has it."""

from __future__ import annotations

import time

import pytest

from carrel.core.domain.errors import Unavailable
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.limits import FIELDS, QosLimits, allows, in_words, limit_of, parse_limits, value_of
from carrel.engines.slurm.listing import SlurmJob
from carrel.engines.slurm.states import waits_for
from carrel.testing.waiting import wait_until
from support.slurm_site import SlurmSite

LINES = "\n".join(
    "|".join(said.get(field, "") for field in FIELDS)
    for said in (
        {"Name": "short", "MaxJobsPU": "1", "MaxTRESPU": "cpu=8,gres/gpu=2", "MaxWall": "00:01:00"},
        {"Name": "normal"},
    )
)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("reason", "field", "value"),
    [
        ("QOSMaxJobsPerUserLimit", "MaxJobsPU", "1"),
        ("QOSMaxGRESPerUser", "MaxTRESPU", "gres/gpu=2"),
        ("QOSMaxCpuPerUserLimit", "MaxTRESPU", "cpu=8"),
        ("QOSMaxMemoryPerUser", "MaxTRESPU", ""),
        ("QOSMaxWallDurationPerJobLimit", "MaxWall", "00:01:00"),
        ("QOSMaxGRESPerJob", "MaxTRES", ""),
        ("QOSGrpGRES", "GrpTRES", ""),
        ("QOSGrpJobsLimit", "GrpJobs", ""),
    ],
)
def test_a_reason_names_a_limit_and_its_value(reason: str, field: str, value: str) -> None:
    limit = limit_of(reason)
    assert limit is not None
    assert limit[0] == field
    assert value_of(parse_limits(LINES)["short"], reason) == value
    assert FIELDS[field].removeprefix("resources") in in_words(reason)


def test_reasons_are_said_in_words_and_unknown_ones_as_slurm_has_them() -> None:
    def said(reason: str, limit: str = "") -> str:
        return waits_for(SlurmJob(id=7, state="PENDING", reason=reason), limit)

    assert said("Priority") == "It waits in Slurm as job 7, PENDING: Priority (others are ahead of it)."
    assert "down, drained or reserved" in said("ReqNodeNotAvail, UnavailableNodes:node[1-2]")
    assert said("QOSMaxGRESPerUser", "So many.").endswith(
        "QOSMaxGRESPerUser (a limit of its QoS in Slurm: gres per user). So many."
    )
    assert said("SomethingNew") == "It waits in Slurm as job 7, PENDING: SomethingNew."
    assert said("None") == "It waits in Slurm as job 7, PENDING."


def test_limits_are_asked_for_once_in_a_while_and_silence_says_nothing() -> None:
    now, asked = [0.0], []

    def limits() -> dict[str, dict[str, str]]:
        asked.append(now[0])
        if now[0] > 100:
            raise Unavailable("slurmdbd does not answer.")
        return parse_limits(LINES)

    book = QosLimits(qos_of=lambda _number: "short", limits=limits, monotonic=lambda: now[0], fresh=60.0)
    assert book.of_job(7, "Priority") == ""
    assert asked == []
    assert book.of_job(7, "QOSMaxJobsPerUserLimit") == 'QoS "short" of Slurm has the limit running jobs per user: 1.'
    assert book.of_job(8, "QOSMaxGRESPerUser") == 'QoS "short" of Slurm has the limit resources per user: gres/gpu=2.'
    assert book.of_qos("short").endswith("walltime per job: 00:01:00.")
    assert (book.of_qos("normal"), book.of_qos(""), book.of_qos("gone")) == ("", "", "")
    assert asked == [0.0]
    now[0] = 200.0
    assert book.of_job(7, "QOSMaxJobsPerUserLimit") == ""
    assert allows({}) == ""


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm-engine")
def test_the_database_is_asked_for_the_limit_that_holds_a_job(site: SlurmSite) -> None:
    commands = SlurmCommands(environ=site.environ)
    first, second = (site.submit("sleep 600", "--qos=short", "--time=1", "--mem=64M") for _ in range(2))
    site.wait_for(first, "RUNNING")

    def held() -> SlurmJob | None:
        return next((job for job in commands.listing() if job.id == second and limit_of(job.reason)), None)

    wait_until(held)
    job = held()
    assert job is not None
    book = QosLimits(qos_of=commands.qos_of, limits=commands.limits, monotonic=time.monotonic)
    assert waits_for(job, book.of_job(job.id, job.reason)) == (
        f"It waits in Slurm as job {second}, PENDING: QOSMaxJobsPerUserLimit "
        "(a limit of its QoS in Slurm: running jobs per user). "
        'QoS "short" of Slurm has the limit running jobs per user: 1.'
    )
