"""Which tasks give their GPUs to cells."""

from __future__ import annotations

from dataclasses import replace

from scheduled import job

from carrel.core.control.launching import lends, why_it_keeps_gpus
from carrel.core.domain.job import JobState
from carrel.core.domain.qos import JobKind, Lends, QoS

QOS = QoS(name="batch")
JOB = job(1, qos="batch", gpus=2, cpus=4, time=600, state=JobState.RUNNING, node="n1")


def test_a_task_gives_way_unless_somebody_says_otherwise() -> None:
    assert lends(JOB, QOS)
    assert why_it_keeps_gpus(JOB, QOS) == ""
    for one, qos, why in (
        (replace(JOB, preemptible=False), QOS, "--no-preempt"),
        (JOB, replace(QOS, lends=Lends.NOBODY), "lends to nobody"),
        (replace(JOB, resources=replace(JOB.resources, nodes=2)), QOS, "cannot be paused as one"),
        (replace(JOB, node="slurm:gpu"), QOS, "only tasks of one GPU"),
    ):
        assert why in why_it_keeps_gpus(one, qos)
        assert not lends(one, qos)
    assert not lends(replace(JOB, kind=JobKind.SESSION), QOS)
