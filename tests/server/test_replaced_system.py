"""The defects of the system that Carrel replaces, each as a test against a real lab.

They were found by reading a task gateway for MLflow projects: parameters that never reach the job, jobs of others that anybody
can read and delete, ends that have no name, a history that is lost without a word.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from carrel import Client
from carrel.core.domain.errors import Invalid
from carrel.testing.waiting import PATIENCE
from carrel.wire.v1 import JobDetail, ResourceRequest
from support.lab_process import LabProcess

PROJECT = """
name: several
entry_points:
  main:
    command: "echo this is main"
  train:
    parameters:
      lr: {type: float, default: 0.5}
      note: string
    command: "printf '%s|%s' {lr} {note}"
  slow:
    command: "echo started; sleep 600"
  hungry:
    command: "python3 -c 'import time; x = bytearray(200 << 20); time.sleep(60)'"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "several"
    directory.mkdir()
    (directory / "MLproject").write_text(PROJECT)
    return directory


def run(client: Client, project: Path, **options: object) -> tuple[JobDetail, str]:
    job = client.submit_project(project, **options)  # type: ignore[arg-type]
    return client.wait(job.id, timeout=PATIENCE), b"".join(client.log(job.id)).decode()


def started(client: Client, project: Path, **options: object) -> int:
    job = client.submit_project(project, entry_point="slow", **options)  # type: ignore[arg-type]
    for text in client.stream_log(job.id):
        if "started" in text:
            break
    return job.id


@pytest.mark.gate
def test_entry_point_and_parameters_reach_the_job(client: Client, project: Path) -> None:
    note = 'it\'s "quoted" $HOME `x` ;|& ü'
    job, log = run(client, project, entry_point="train", parameters={"lr": "0.1", "note": note})
    assert (job.state, log) == ("COMPLETED", f"0.1|{note}")
    assert (job.entry_point, job.parameters) == ("train", {"lr": "0.1", "note": note})
    assert run(client, project, entry_point="train", parameters={"note": "x"})[1] == "0.5|x", "defaults too"


def test_every_end_has_its_own_name(client: Client, project: Path) -> None:
    timeout, _ = run(client, project, entry_point="slow", resources=ResourceRequest(time="1s"))
    assert (timeout.state, timeout.reason) == ("TIMEOUT", "TimeLimit")
    hungry, _ = run(client, project, entry_point="hungry", resources=ResourceRequest(memory="64M"))
    assert (hungry.state, hungry.reason) == ("OUT_OF_MEMORY", "OutOfMemory")
    assert "64" in hungry.message


@pytest.mark.parametrize("config", [{"mem_per_gpu": "4G"}, {"mem": "lots"}, {"nodes": 9}, {"gres": "tpu:1"}])
def test_backend_config_is_understood_or_refused(client: Client, project: Path, config: dict[str, object]) -> None:
    with pytest.raises(Invalid) as refused:
        client.submit_project(project, backend_config=config)
    assert next(iter(config)) in str(refused.value)


def test_backend_config_with_the_usual_names_counts(client: Client, project: Path) -> None:
    config = {"mem": "1G", "time": "10", "gres": "gpu:2", "cpus-per-task": 2}
    job, _ = run(client, project, backend_config=config)
    wanted = (2, 2, 2**30, 600)
    assert (job.resources.gpus, job.resources.cpus, job.resources.memory, job.resources.time) == wanted
    assert len(job.devices) == 2
    assert job.simulated


def test_commit_and_uncommitted_changes_are_recorded(client: Client, project: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        return subprocess.run(["git", *identity, *words], cwd=project, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    (project / "MLproject").write_text(PROJECT.replace("this is main", "this was edited"))
    job, log = run(client, project)
    assert log == "this was edited\n"
    record = client.record(job.id)
    assert record["task"]["git"]["commit"] == git("rev-parse", "HEAD").strip()
    assert record["task"]["git"]["dirty"] is True
    assert '+    command: "echo this was edited"' in record["task"]["git"]["diff"]
    again = client.wait(client.rerun(job.id).id)
    assert b"".join(client.log(again.id)) == b"this was edited\n", "the code itself is kept, not only its commit"
    assert again.rerun_of == job.id


def test_a_repeated_task_takes_the_environment_of_the_first_with_it(client: Client, project: Path) -> None:
    (project / "python_env.yaml").write_text("dependencies: [idna]\n")
    (project / "MLproject").write_text(
        "name: locked\npython_env: python_env.yaml\nentry_points: {main: {command: 'python -c \"import idna\"'}}\n"
    )
    first = client.wait(client.submit_project(project).id, timeout=PATIENCE)
    assert first.state == "COMPLETED", first.message
    second = client.wait(client.rerun(first.id).id, timeout=PATIENCE)
    records = [client.record(job.id) for job in (first, second)]
    lock = records[0]["attempts"][0]["environment_lock_text"]
    assert "idna==" in lock
    assert "--hash=sha256:" in lock
    assert records[1]["task"]["environment"]["lock"] == lock
    assert second.attempts[0].environment == first.attempts[0].environment


def test_no_token_shows_up_in_logs_outputs_or_command_lines(lab: LabProcess, client: Client, project: Path) -> None:
    (project / "leak.sh").write_text(
        'echo "token: $CARREL_TOKEN"; tr "\\0" "\\n" < /proc/self/cmdline; mkdir -p outputs; echo done'
    )
    job, log = run(client, project, entry_point="leak.sh")
    assert "token: *" in log
    secrets_known = [lab.token, (lab.home / "secret").read_text().strip()]
    for path in lab.home.rglob("*"):
        if path.is_file() and path.name not in ("token", "secret"):
            content = path.read_bytes()
            assert not any(secret.encode() in content for secret in secrets_known), f"a secret lies in {path}"
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes()
        except OSError:
            continue
        assert lab.token.encode() not in words
    assert "carrel-job." not in json.dumps(client.record(job.id))


@pytest.mark.parametrize(
    ("files", "fact", "remedy"),
    [
        ({"MLproject": PROJECT + "carrel: {inputs: {d: 'rucio://scope:name'}}\n"}, "this lab has no Rucio", "rucio_url"),
        ({"MLproject": PROJECT + "carrel: {inputs: {d: 'ftt://scope/name'}}\n"}, "reads ftt://", "own command"),
        (
            {"MLproject": PROJECT + "carrel: {inputs: {d: 'git+https://-x/r.git'}}\n"},
            "no address of a git repository",
            "git+https",
        ),
        ({"MLproject": PROJECT + "carrel: {inputs: {d: 'oss://bucket/key'}}\n"}, "oss:// needs a package", "install it"),
        ({"MLproject": PROJECT + "carrel: {inputs: {d: 'simplecache::oss://b/k'}}\n"}, "oss:// needs a package", "install it"),
        (
            {"python_env.yaml": 'python: "3.99"\ndependencies: [idna]\n'},
            "No Python on this machine satisfies '3.99'",
            "download_python",
        ),
    ],
    ids=["no Rucio", "no scheme", "no repository", "no package", "chained", "no Python"],
)
def test_what_can_never_be_prepared_is_refused_before_it_waits(
    client: Client, project: Path, files: dict[str, str], fact: str, remedy: str
) -> None:
    for name, text in files.items():
        (project / name).write_text(text)
    before = [job.id for job in client.jobs(limit=None)]
    with pytest.raises(Invalid) as refused:
        client.submit_project(project)
    assert fact in refused.value.message
    assert remedy in refused.value.remedy
    assert [job.id for job in client.jobs(limit=None)] == before
