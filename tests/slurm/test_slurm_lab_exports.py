"""A task that a lab ran on a cluster, in the lab's own export and in Slurm's accounting."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from slurm_lab import Lab

from carrel.core.exports import SACCT_COLUMNS
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import ResourceRequest
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]

SAME = ("ExitCode", "State", "NNodes", "NCPUS", "ReqCPUS")


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize("code", [0, 3])
def test_a_task_is_in_both_the_same(lab: Lab, site: SlurmSite, code: int) -> None:
    # Long enough to be a batch job: of an allocation that srun holds Slurm remembers srun's end.
    asked = ResourceRequest(cpus=2, memory="192M", gpus=1, time="20m")
    job = lab.submit(f"exit {code}\n", name="a|b", resources=asked)
    lab.ended(job)
    number = lab.number(job)

    def in_slurm() -> dict[str, str]:
        words = ("--jobs", number, "--allocations", "--parsable2", "--noheader", "--format", ",".join(SACCT_COLUMNS))
        line = next(iter(site.run("sacct", *words, environ={"TZ": "UTC"}).out.splitlines()), "")
        return dict(zip(SACCT_COLUMNS, line.split("|", len(SACCT_COLUMNS) - 1), strict=False))

    def heard() -> bool:
        # Accounting may hear of the end before it hears of the rest.
        line = in_slurm()
        return line.get("State") in ("COMPLETED", "FAILED") and line["Partition"] == "main"

    wait_until(heard, in_slurm)
    theirs = in_slurm()
    done = lab.carrel("report", "jobs")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"{job}|"))
    ours = dict(zip(SACCT_COLUMNS, line.split("|", len(SACCT_COLUMNS) - 1), strict=True))
    both = {"ours": ours, "theirs": theirs}
    assert {name: ours[name] for name in SAME} == {name: theirs[name] for name in SAME}
    # The lab asks Slurm for more memory, which is for its runner.
    tres = {name: [one for one in line["AllocTRES"].split(",") if not one.startswith("mem=")] for name, line in both.items()}
    assert tres["ours"] == tres["theirs"]
    moments = [moment(line[name]) for line, name in ((theirs, "Start"), (ours, "Start"), (ours, "End"), (theirs, "End"))]
    # Slurm's clock for whole seconds may be a moment behind.
    assert all(before <= after + 1 for before, after in pairwise(moments))
    assert (ours["JobName"], ours["Partition"], ours["NodeList"]) == ("a|b", "cluster", "slurm:cluster")
    header = lab.carrel("report", "jobs", "--format", "swf").stdout
    assert "MaxProcs" not in header
