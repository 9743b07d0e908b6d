"""The memory cgroup of a job goes with it, whatever the job has made in it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from carrel.core.domain.job import JobState
from carrel.engines.leftovers import kill_leftovers
from carrel.node.runner.cgroups import CgroupParent, JobCgroup, find_parent
from carrel.testing.builders import LabHome, make_launch

#: Cgroups, one below the other, in which a process stays.
DEPTH = 50


@pytest.fixture
def parent() -> CgroupParent:
    found = find_parent()
    if found is None:
        pytest.skip("This machine has no memory cgroups for us.")
    return found


def test_cgroups_that_a_job_has_made_end_with_it(parent: CgroupParent, lab) -> None:
    name = "$(grep -o 'carrel-[0-9]*-[0-9]*-[0-9]*' /proc/self/cgroup | head -1)"
    deep = f"for i in $(seq {DEPTH}); do mkdir below; cd below; done"
    ended = lab.run(f"echo name={name}; cd {parent.path}/{name}; {deep}; sleep 600 & echo $! > cgroup.procs")
    assert ended.state is JobState.COMPLETED, lab.output()
    found = re.search(rb"name=(carrel-\S+)", lab.output())
    assert not Path(parent.path, os.fsdecode(found[1])).exists()


def test_what_a_lost_runner_left_in_them_is_ended(parent: CgroupParent, tmp_path: Path) -> None:
    home = LabHome(tmp_path / "lab")
    directory = home.attempt(make_launch(home, "true"))
    directory.path.mkdir(parents=True)
    cgroup = JobCgroup(parent, f"carrel-test-{os.getpid()}", 64 * 1024**2)
    directory.cgroup.write_text(f"{cgroup.path}\n")
    below = Path(cgroup.path, "below")
    below.mkdir()
    with subprocess.Popen(["sleep", "600"]) as left:
        (below / "cgroup.procs").write_text(str(left.pid))
        assert kill_leftovers(directory) == 1
        assert left.wait() == -9
    kill_leftovers(directory)
    assert not Path(cgroup.path).exists()
