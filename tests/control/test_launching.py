"""Which tasks give their GPUs to cells."""

from __future__ import annotations

from dataclasses import replace

from carrel.core.control.launching import lends, why_it_keeps_gpus
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.qos import JobKind, Lends, QoS
from carrel.core.domain.resources import Resources

QOS = QoS(name="batch")
JOB = Job(
    id=1,
    kind=JobKind.TASK,
    owner="ada",
    account="default",
    name="work",
    qos="batch",
    resources=Resources(gpus=2, cpus=4, time=600),
    state=JobState.RUNNING,
    reason=Reason(code="Running", message=""),
    submitted_at=0.0,
    node="n1",
)


def test_a_task_gives_way_unless_somebody_says_otherwise() -> None:
    assert lends(JOB, QOS)
    assert why_it_keeps_gpus(JOB, QOS) == ""
    for job, qos, why in (
        (replace(JOB, preemptible=False), QOS, "--no-preempt"),
        (JOB, replace(QOS, lends=Lends.NOBODY), "lends to nobody"),
        (replace(JOB, resources=replace(JOB.resources, nodes=2)), QOS, "cannot be paused as one"),
        (replace(JOB, node="slurm:gpu"), QOS, "only tasks of one GPU"),
    ):
        assert why in why_it_keeps_gpus(job, qos)
        assert not lends(job, qos)
    assert not lends(replace(JOB, kind=JobKind.SESSION), QOS)
