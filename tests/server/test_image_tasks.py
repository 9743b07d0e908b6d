"""Tasks that run in an image: fetched and unpacked by the real programs, and run by a real lab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.client import Client
from carrel.core.domain.errors import CarrelError
from carrel.wire.v1 import JobDetail, ResourceRequest
from support.image_lab import image_lab
from support.image_registry import Registry
from support.images import make_image, programs, write_archive, write_layer
from support.lab_process import LabProcess
from support.small_lab import client

__all__ = ["client", "image_lab"]

#: What such a task finds around it.
LOOK = """
cat /etc/motd; ls /; echo "PATH=$PATH"; echo "FLAVOUR=$FLAVOUR HOME=$HOME"; cat input.txt
echo made > "$CARREL_OUTPUT_DIR/made.txt"; echo kept > "$HOME/kept" && echo "home is there"
(echo x > /etc/x) 2>/dev/null || echo "image is read-only"; (cat {home}/token) 2>/dev/null || echo "no token"
echo x > "$TMPDIR/x" && echo x > /tmp/y && echo "temporary files"
test -e /etc/debian_version || echo "not the machine"; exit 7
"""


@pytest.fixture(scope="module")
def layers() -> list[bytes]:
    base = {**programs("sh", "cat", "ls", "test"), "etc/motd": b"base\n", "etc/gone": b"", "usr/bin/env": "/bin/sh"}
    return [write_layer(base), write_layer({"etc/.wh.gone": b"", "etc/motd": b"an image\n"})]


def _project(directory: Path, environment: str, command: str) -> Path:
    directory.mkdir()
    described = f"name: images\n{environment}\nentry_points:\n  main:\n    command: {json.dumps(command)}\n"
    (directory / "MLproject").write_text(described)
    (directory / "input.txt").write_text("the input\n")
    return directory


def _run(client: Client, project: Path, **more: Any) -> tuple[JobDetail, str]:
    job = client.submit_project(project, **more)
    ended = client.wait(job.id)
    return ended, "".join(client.stream_log(job.id))


@pytest.mark.gate
def test_a_task_sees_its_image_and_its_own_files(lab: LabProcess, client: Client, layers: list[bytes], tmp_path: Path) -> None:
    env = 'docker_env: {image: "oci-archive:train.tar", environment: [[FLAVOUR, mild]]}'
    project = _project(tmp_path / "project", env, LOOK.format(home=lab.home))
    digest = write_archive(project / "train.tar", layers, {"PATH": "/bin", "FLAVOUR": "hot", "CARREL_TOKEN": "theirs"})
    ended, log = _run(client, project, resources=ResourceRequest(gpus=1))
    assert (ended.state, ended.exit_code) == ("FAILED", 7), log
    for line in ("an image", "FLAVOUR=mild", "the input", "home is there", "image is read-only", "no token", "temporary files"):
        assert line in log, log
    assert "not the machine" in log
    assert "PATH=/bin" in log
    assert "bin" in log.split()
    assert [output.path for output in client.outputs(ended.id)] == ["outputs/made.txt"]
    record = client.record(ended.id)
    assert digest in json.dumps(record)
    again = client.wait(client.rerun(ended.id).id)
    assert again.exit_code == 7
    assert digest in json.dumps(client.record(again.id))


@pytest.fixture
def registry(layers: list[bytes]) -> Iterator[tuple[str, dict[str, str], dict[str, bytes]]]:
    with Registry() as registry:
        registry.publish("1", layers, {"PATH": "/bin"})
        yield f"{registry.host}/lab/train", registry.tags, registry.blobs


def test_an_image_of_a_registry_is_pinned_by_its_digest(
    client: Client, registry: tuple[str, dict[str, str], dict[str, bytes]], layers: list[bytes], tmp_path: Path
) -> None:
    name, tags, blobs = registry
    project = _project(tmp_path / "project", f'carrel: {{image: "{name}:1"}}', "cat /etc/motd")
    first, log = _run(client, project)
    assert (first.state, log) == ("COMPLETED", "an image\n")
    # Somebody gives the tag to another image: who runs the job again has the one of before.
    before = tags["1"]
    tags["1"], others = make_image([*layers, write_layer({"etc/motd": b"another\n"})], {"PATH": "/bin"})
    blobs.update(others)
    again = client.wait(client.rerun(first.id).id)
    assert "".join(client.stream_log(again.id)) == "an image\n"
    assert before in json.dumps(client.record(again.id))
    # By its digest it is another one.
    other, log = _run(client, project, image=f"{name}@{tags['1']}")
    assert (other.state, log) == ("COMPLETED", "another\n")
    missing, log = _run(client, project, image=f"{name}:2")
    assert missing.state == "FAILED"
    assert f"{name}:2" in missing.message


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ("docker_env: {image: 'dir:/etc'}", "not the name of an image"),
        ("docker_env: {image: 'oci-archive:../x.tar'}", "not the name of an image"),
        ("docker_env: {image: '--help'}", "not the name of an image"),
        ("docker_env: {}", "names no image"),
        ("docker_env: {image: 'x', volumes: ['/a:/b']}", "volumes of docker_env are not mounted"),
        ("docker_env: {image: 'x', environment: [HOME]}", "without its value"),
        ("docker_env: {image: 'x'}\ncarrel: {image: y}", "are both there"),
    ],
)
def test_what_is_no_image_is_refused_by_name(client: Client, tmp_path: Path, description: str, words: str) -> None:
    project = _project(tmp_path / "project", description, "true")
    with pytest.raises(CarrelError, match=words):
        client.submit_project(project)


def test_a_file_that_is_no_image_ends_the_task_with_what_was_said(client: Client, tmp_path: Path) -> None:
    project = _project(tmp_path / "project", "docker_env: {image: 'oci-archive:input.txt'}", "true")
    ended, _log = _run(client, project)
    assert ended.state == "FAILED"
    assert "oci-archive:input.txt" in ended.message
    absent = _project(tmp_path / "absent", "docker_env: {image: 'oci-archive:there.tar'}", "true")
    ended, _log = _run(client, absent)
    assert ended.state == "FAILED"
    assert "not a file of the task's code" in ended.message
