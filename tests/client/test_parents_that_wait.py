"""A job that waits for one that it submitted gives it its place: on a machine with one GPU, both need it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire import v1

BARE = str(Path(sys.base_prefix) / "bin" / "python3")
GPU = v1.ResourceRequest(cpus=1, memory="256M", gpus=1)
PARENT = """
import os, carrel
from carrel.wire.v1 import ResourceRequest
small = ResourceRequest(cpus=1, memory="64M", gpus=1)
with carrel.Client() as lab:
    first, second = (lab.submit_project("child.sh", resources=small, arguments=[word]) for word in ("one", "two"))
    print("children", first.id, second.id, flush=True)
    WAIT
    print("again with", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
"""


def submit(client: Client, directory: Path, wait: str) -> v1.JobView:
    project = directory / "project"
    project.mkdir()
    (project / "MLproject").write_text(f"entry_points:\n  main:\n    command: '{BARE} parent.py'\n")
    (project / "parent.py").write_text(PARENT.replace("WAIT", wait))
    (project / "child.sh").write_text("echo child $1 has $CUDA_VISIBLE_DEVICES\n")
    return client.submit_project(project, resources=GPU)


@pytest.mark.gate
def test_one_gpu_is_enough_for_a_parent_and_the_children_that_it_waits_for(client: Client, tmp_path: Path) -> None:
    parent = submit(client, tmp_path, "print([lab.wait(job.id).state for job in (first, second)], flush=True)")
    ended = client.wait(parent.id, timeout=4 * PATIENCE)
    log = "".join(client.stream_log(parent.id))
    assert ended.state == "COMPLETED", log
    assert "['COMPLETED', 'COMPLETED']" in log
    assert ended.suspended_seconds > 0
    children = [client.job(int(word)) for word in log.split("children ")[1].splitlines()[0].split()]
    assert {job.devices[0] for job in (ended, *children)} == {ended.devices[0]}
    events = [event.data for event in client.events(parent.id) if event.type == "state"]
    said = [event["message"] for event in events if event["state"] == "SUSPENDED"]
    assert said[0] == (
        f"Job {children[0].id}, which this job submitted and waits for, took its GPUs. "
        f"This job resumes by itself when job {children[0].id} ends."
    )


def test_a_parent_that_does_not_wait_keeps_its_gpu(client: Client, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    os.mkfifo(go_on)
    parent = submit(client, tmp_path, f"open({str(go_on)!r}).read()")
    wait_until(lambda: "children" in b"".join(client.log(parent.id)).decode(), PATIENCE)
    first = int(b"".join(client.log(parent.id)).decode().split()[1])
    wait_until(lambda: client.job(first).queue is not None, PATIENCE)
    assert (client.job(first).state, client.job(parent.id).state) == ("PENDING", "RUNNING")
    go_on.write_text("")
    ended = client.wait(parent.id, timeout=PATIENCE)
    assert (ended.state, ended.suspended_seconds) == ("COMPLETED", 0)
    assert client.wait(first, timeout=PATIENCE).state == "COMPLETED"


FOREVER = """
import os, carrel
from carrel.core.domain.errors import Conflict
with carrel.Client() as lab:
    first = lab.submit_project("child.sh", arguments=["one"], dependency="afterany:" + os.environ["CARREL_JOB_ID"])
    second = lab.submit_project("child.sh", arguments=["two"], dependency=f"afterok:{first.id}")
    try:
        lab.wait(second.id)
    except Conflict as error:
        print("children", first.id, second.id, "refused", error, flush=True)
"""


def test_to_wait_for_what_starts_only_afterwards_is_refused(client: Client, tmp_path: Path) -> None:
    (tmp_path / "MLproject").write_text(f"entry_points:\n  main:\n    command: '{BARE} parent.py'\n")
    (tmp_path / "parent.py").write_text(FOREVER)
    (tmp_path / "child.sh").write_text("echo child $1\n")
    parent = client.submit_project(tmp_path, resources=v1.ResourceRequest(cpus=1, memory="256M"))
    assert client.wait(parent.id, timeout=PATIENCE).state == "COMPLETED"
    log = "".join(client.stream_log(parent.id))
    second = int(log.split()[2])
    assert f"refused Job {second} starts only when job {parent.id} has ended" in log
    assert client.wait(second, timeout=PATIENCE).state == "COMPLETED"
