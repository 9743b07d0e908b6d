"""Arrays in a partition of a Slurm cluster: each element is a job of Slurm's, and the limit holds before Slurm hears of it."""

from __future__ import annotations

from collections import Counter

import pytest
from slurm_lab import Lab, go_on

from carrel.testing.slurm_site import SlurmSite
from carrel.testing.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]


def test_elements_reach_slurm_as_jobs_with_their_variables_and_no_more_of_them_than_may(lab: Lab, site: SlurmSite) -> None:
    wait, go = go_on(lab)
    first = lab.submit(f"env | grep SLURM_ARRAY_ | sort; {wait}", array="1-7:2%2")
    after = lab.submit("echo after", dependency=f"afterok:{first}")
    lab.until(lab.client.element(first, 3).id, lambda job: job.state == "RUNNING")
    lab.until(first, lambda job: job.state == "RUNNING")
    held = lab.until(lab.client.element(first, 5).id, lambda job: job.reason == "JobArrayTaskLimit")
    assert (held.state, held.attempt) == ("PENDING", 0)
    names = site.run("squeue", "-h", "--array", "-o", "%k").out.split()
    assert {".".join(name.split(".")[2:]) for name in names} == {f"{first}.1", f"{lab.client.element(first, 3).id}.1"}
    lab.kill()
    lab.start()
    wait_until(lambda: Counter(job.state for job in lab.client.array(first).jobs) == {"RUNNING": 2, "PENDING": 2})
    lab.client.cancel(lab.client.element(first, 7).id)
    go.touch()
    assert [job.state for job in lab.client.wait_array(first, timeout=PATIENCE)] == ["COMPLETED"] * 3 + ["CANCELLED"]
    assert lab.log(lab.client.element(first, 5).id).split() == [
        f"SLURM_ARRAY_JOB_ID={first}", "SLURM_ARRAY_TASK_COUNT=4", "SLURM_ARRAY_TASK_ID=5", "SLURM_ARRAY_TASK_MAX=7",
        "SLURM_ARRAY_TASK_MIN=1", "SLURM_ARRAY_TASK_STEP=2",
    ]  # fmt: skip
    # One of them was cancelled, so all of them have not ended well.
    assert lab.ended(after).reason == "DependencyNeverSatisfied"
