"""Several processes in one image, started by the lab's own leader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carrel.client import Client
from carrel.testing.waiting import PATIENCE
from carrel.wire.v1 import JobDetail
from support.image_lab import image_lab
from support.images import programs, write_archive, write_layer
from support.lab_process import LabProcess
from support.small_lab import client

__all__ = ["client", "image_lab"]

#: What each process finds around it.
LOOK = """
cat /etc/motd; echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR"; cat {home}/token 2>/dev/null && echo "the lab"
test -e /etc/debian_version && echo "the machine"; grep CapEff /proc/self/status; chroot / /bin/sh -c "echo may change its root"
(echo x > /etc/x) 2>/dev/null || echo "read-only"; echo "$RANK" > "$CARREL_OUTPUT_DIR/$RANK"; echo x > "$TMPDIR/$RANK"
"""


def run(client: Client, directory: Path, command: str, asked: str) -> tuple[JobDetail, list[str], str]:
    """Return how the job ended, its log, and the digest of its image."""
    directory.mkdir()
    layer = write_layer({**programs("sh", "cat", "ls", "grep", "chroot", "test", "sleep"), "etc/motd": b"an image\n"})
    digest = write_archive(directory / "train.tar", [layer], {"PATH": "/bin"})
    (directory / "MLproject").write_text(
        'name: images\ndocker_env: {image: "oci-archive:train.tar"}\n'
        f"carrel: {asked}\nentry_points:\n  main:\n    command: {json.dumps(command)}\n"
    )
    job = client.submit_project(directory)
    ended = client.wait(job.id, timeout=PATIENCE)
    return ended, "".join(client.stream_log(job.id)).splitlines(), digest


@pytest.mark.gate
def test_each_process_is_in_the_image_and_in_the_walls(lab: LabProcess, client: Client, tmp_path: Path) -> None:
    command = LOOK.format(home=lab.home)
    ended, log, digest = run(client, tmp_path / "a", command, "{tasks_per_node: 2, outputs: ['outputs/**']}")
    assert ended.state == "COMPLETED", (ended.message, log)
    for rank in (0, 1):
        mine = [line.removeprefix(f"{rank}: ") for line in log if line.startswith(f"{rank}: ")]
        assert mine[:3] == ["an image", f"rank {rank} of 2 at 127.0.0.1", "CapEff:\t0000000000000000"], log
        assert "read-only" in mine
        assert not {"may change its root", "the lab", "the machine"} & set(mine)
    assert sorted(output.path for output in client.outputs(ended.id)) == ["outputs/0", "outputs/1"]
    assert digest in json.dumps(client.record(ended.id))


def test_the_first_process_that_fails_ends_the_group(client: Client, tmp_path: Path) -> None:
    command = 'if [ "$RANK" = 1 ]; then exit 9; fi; sleep 1000'
    ended, log, _digest = run(client, tmp_path / "a", command, "{tasks_per_node: 2}")
    assert (ended.state, ended.exit_code) == ("FAILED", 9), (ended.message, log)


def test_a_launcher_is_one_of_the_image(client: Client, tmp_path: Path) -> None:
    ended, log, _digest = run(client, tmp_path / "a", "true", "{launcher: torchrun}")
    assert ended.state == "FAILED"
    assert "torchrun is not in the task's image" in ended.message, (ended.message, log)
