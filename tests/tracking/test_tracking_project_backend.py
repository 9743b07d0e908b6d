"""The unchanged `mlflow run --backend carrel`, against a real lab."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tracking_support import Tracking

from carrel.client import Client
from carrel.client.stored_tokens import token_file
from carrel.testing.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.mlflow
API = "/api/2.0/mlflow"
PROGRAMS = Path(sys.executable).parent

MLPROJECT = """
name: tiny
entry_points:
  main:
    parameters:
      epochs: {type: int, default: 3}
    command: "echo epochs {epochs} run $MLFLOW_RUN_ID"
  fail:
    command: "echo about to fail; exit 3"
  slow:
    command: "echo sleeping; exec sleep 600"
"""


@dataclass(frozen=True)
class RealLab:
    home: Path
    client: Client
    tracking: httpx.Client

    def run(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.tracking.get(f"{API}/runs/get", params={"run_id": run_id}).raise_for_status().json()["run"]
        return found

    def newest(self) -> Any:
        (job,) = self.client.jobs(limit=1)
        return self.client.job(job.id)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealLab]:
    home = tmp_path_factory.mktemp("lab") / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('[partition_names]\npascal = "normal"\n[accounts.default]\n[accounts.mltf_acc]\n')
    process = subprocess.Popen(
        [PROGRAMS / "carrel", "up", "--home", home, "--port", "0", "--simulate-gpus", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean(),
    )
    assert process.stdout is not None
    try:
        heard = []
        for line in process.stdout:
            heard.append(line)
            if "stop" in line:
                break
        assert any("Carrel is up" in line for line in heard), heard
        with Client(home=home) as client:
            url, token = client.url, (home / "token").read_text().strip()
            with httpx.Client(base_url=f"{url}/mlflow", headers={"Authorization": f"Bearer {token}"}, timeout=90) as tracking:
                yield RealLab(home=home, client=client, tracking=tracking)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "MLproject").write_text(MLPROJECT)
    return directory


def clean(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW", "CARREL"))}
    return kept | {"PYTHONWARNINGS": "ignore"} | more


def start(lab: RealLab, project: Path, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    backend = () if "--backend" in arguments else ("--backend", "carrel")
    command = [PROGRAMS / "mlflow", "run", project.name, *backend, *arguments]
    environment = clean(**{"CARREL_HOME": str(lab.home), **(env or {})})
    return subprocess.Popen(
        command, cwd=project.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def mlflow_run(lab: RealLab, project: Path, *arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    process = start(lab, project, *arguments, env=env)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def pairs(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {row["key"]: row["value"] for row in rows}


@pytest.mark.gate
def test_a_project_runs_in_the_lab_and_is_a_run_there(lab: RealLab, project: Path) -> None:
    code, out, err = mlflow_run(lab, project, "-P", "epochs=5", "--run-name", "first", "--experiment-name", "trials")
    assert code == 0, err
    job = lab.newest()
    assert out == f"epochs 5 run {job.run_id}\n"
    assert (job.state, job.name, job.parameters) == ("COMPLETED", "first", {"epochs": "5"})
    run = lab.run(job.run_id)
    assert (run["info"]["status"], run["info"]["run_name"]) == ("FINISHED", "first")
    experiment = lab.tracking.get(f"{API}/experiments/get", params={"experiment_id": run["info"]["experiment_id"]}).json()
    assert experiment["experiment"]["name"] == "trials"
    assert pairs(run["data"]["params"]) == {"epochs": "5"}
    tags = pairs(run["data"]["tags"])
    assert tags["carrel.job_id"] == str(job.id)
    assert tags["carrel.snapshot"] == job.snapshot
    assert tags["mlflow.project.backend"] == "carrel"
    files = lab.tracking.get(f"{API}/artifacts/list", params={"run_id": job.run_id, "path": "carrel"}).json()["files"]
    assert {"carrel/log.txt", "carrel/record.json"} <= {file["path"] for file in files}
    log = lab.tracking.get("/get-artifact", params={"run_id": job.run_id, "path": "carrel/log.txt"})
    assert log.text == out


def test_the_run_is_called_as_the_job_and_nothing_is_left_beside_the_project(lab: RealLab, project: Path) -> None:
    before = sorted(project.parent.iterdir())
    code, _, err = mlflow_run(lab, project, "--experiment-name", "beside")
    assert code == 0, err
    job = lab.newest()
    assert lab.run(job.run_id)["info"]["run_name"] == job.name
    assert sorted(project.parent.iterdir()) == before
    # What the user has there stays.
    tracking = clean(MLFLOW_TRACKING_URI=f"sqlite:///{project.parent}/mlflow.db")
    subprocess.run([PROGRAMS / "mlflow", "experiments", "create", "-n", "own"], cwd=project.parent, env=tracking, check=True)
    assert mlflow_run(lab, project, "--experiment-name", "beside")[0] == 0
    assert (project.parent / "mlflow.db").exists()


def test_a_failed_task_fails_the_command(lab: RealLab, project: Path) -> None:
    tracked = {"MLFLOW_TRACKING_URI": f"{lab.client.url}/mlflow", "MLFLOW_TRACKING_TOKEN": "stale"}
    code, out, err = mlflow_run(lab, project, "-e", "fail", env=tracked)
    assert code == 1
    assert out.splitlines()[0] == "about to fail"
    assert "ended FAILED" in err
    assert "Traceback" not in err
    assert lab.run(lab.newest().run_id)["info"]["status"] == "FAILED"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-P", "epochs=many"], "epochs"),
        (["-c", '{"gpu": 1}'], "gpu"),
        (["--env-manager", "local"], "--env-manager local"),
        (["-A", "gpus=all"], "--docker-args"),
    ],
)
def test_what_is_wrong_is_refused_in_words(lab: RealLab, project: Path, arguments: list[str], words: str) -> None:
    before = {job.id for job in lab.client.jobs(limit=None)}
    code, _, err = mlflow_run(lab, project, *arguments)
    assert code == 1
    assert words in err
    assert "Traceback" not in err
    assert {job.id for job in lab.client.jobs(limit=None)} == before
    body = {"experiment_ids": ["0"], "filter": "attributes.status = 'RUNNING'"}
    assert not lab.tracking.post(f"{API}/runs/search", json=body).raise_for_status().json().get("runs")


def test_ctrl_c_cancels(lab: RealLab, project: Path) -> None:
    process = start(lab, project, "-e", "slow")
    assert process.stdout.readline() == "sleeping\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, None), err
    job = lab.newest()
    assert job.state == "CANCELLED"
    assert lab.run(job.run_id)["info"]["status"] == "KILLED"


SCRIPT = """
import json, mlflow
submitted = mlflow.run("tiny", entry_point="slow", backend="carrel", synchronous=False)
before = submitted.get_status()
submitted.cancel()
after = submitted.get_status(), submitted.wait()
try:
    mlflow.run("tiny", entry_point="fail", backend="carrel")
except mlflow.exceptions.ExecutionException as error:
    failed = str(error)
print(json.dumps([submitted.run_id, before, after, failed]))
"""


def test_from_python_it_waits_as_it_is_told(lab: RealLab, project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        cwd=project.parent,
        env=clean(CARREL_HOME=str(lab.home)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    run_id, before, after, failed = json.loads(done.stdout.splitlines()[-1])
    assert before in ("SCHEDULED", "RUNNING")
    assert after == ["KILLED", False]
    assert "failed" in failed
    assert lab.run(run_id)["info"]["status"] == "KILLED"


def test_detached_it_comes_back_at_once(lab: RealLab, project: Path) -> None:
    code, out, err = mlflow_run(lab, project, "-e", "slow", "-c", '{"detach": true}')
    assert (code, out) == (0, ""), err
    job = lab.newest()
    assert not job.ended
    lab.client.cancel(job.id)
    assert lab.client.wait(job.id, timeout=PATIENCE).state == "CANCELLED"


def test_a_run_that_is_named_is_used(lab: RealLab, project: Path) -> None:
    made = lab.tracking.post(f"{API}/runs/create", json={"experiment_id": "0", "run_name": "mine"}).raise_for_status().json()
    run_id = made["run"]["info"]["run_id"]
    code, out, err = mlflow_run(lab, project, env={"MLFLOW_RUN_ID": run_id})
    assert (code, out) == (0, f"epochs 3 run {run_id}\n"), err
    assert lab.run(run_id)["info"]["status"] == "FINISHED"


def test_on_another_server_only_the_command_and_the_task_write(lab: RealLab, project: Path, tracking: Tracking) -> None:
    elsewhere = {"MLFLOW_TRACKING_URI": tracking.url, "MLFLOW_TRACKING_TOKEN": "alice-token"}
    code, out, err = mlflow_run(lab, project, "-P", "epochs=7", env=elsewhere)
    assert code == 0, err
    run_id = out.splitlines()[0].split()[-1]  # MLflow says more behind it
    with tracking.client("alice-token") as alice:
        run = alice.get(f"{API}/runs/get", params={"run_id": run_id}).raise_for_status().json()["run"]
    assert run["info"]["status"] == "FINISHED"
    assert pairs(run["data"]["params"]) == {"epochs": "7"}
    assert pairs(run["data"]["tags"])["mlflow.project.backend"] == "carrel"
    assert not [key for key in pairs(run["data"]["tags"]) if key.startswith("carrel.")]
    assert lab.tracking.get(f"{API}/runs/get", params={"run_id": run_id}).status_code == 404


def test_without_a_lab_the_command_says_so(project: Path, tmp_path: Path) -> None:
    command = [PROGRAMS / "mlflow", "run", project.name, "--backend", "carrel"]
    environment = clean(CARREL_HOME=str(tmp_path / "nowhere"))
    done = subprocess.run(command, cwd=project.parent, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert "No lab is running" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_run_is_made_while_the_lab_waits_for_nothing(lab: RealLab, project: Path) -> None:
    # Submitted without mlflow at all: the lab makes the run itself, and the job leads to it.
    job = lab.client.submit_project(project, experiment="quiet", name="plain")
    ended = lab.client.wait(job.id, timeout=PATIENCE)
    assert ended.state == "COMPLETED"
    run_id = wait_until(lambda: lab.client.job(job.id).run_id, "the run")
    wait_until(lambda: lab.run(run_id)["info"]["status"] != "RUNNING", "the run's end")
    run = lab.run(run_id)
    assert run["info"]["status"] == "FINISHED"
    assert pairs(run["data"]["tags"])["carrel.state"] == "COMPLETED"
    assert pairs(run["data"]["params"]) == {"epochs": "3"}


def test_a_project_for_a_cluster_runs_as_it_is_written(lab: RealLab, project: Path) -> None:
    config = Path(__file__).parents[1] / "data" / "mltf" / "slurm_config.json"
    code, out, err = mlflow_run(lab, project, "--backend", "slurm", "--backend-config", str(config))
    assert code == 0, err
    assert "epochs 3" in out
    for note in ("researcher@example.org", "GCCcore/.11.3.0, Python/3.10.4", "batchFile", 'Partition "pascal" is "normal"'):
        assert note in out, note  # the first lines of the log
    job = lab.newest()
    assert (job.name, job.account, job.resources.gpus) == ("MG_process_HiggsW", "mltf_acc", 1)
    assert lab.run(job.run_id)["info"]["status"] == "FINISHED"


def test_where_another_plugin_is_called_slurm_it_is_that_one_and_doctor_says_so(lab: RealLab, tmp_path: Path) -> None:
    info = tmp_path / "other_slurm-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-slurm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mlflow.project_backend]\nslurm = other_slurm:backend\n")
    (tmp_path / "other_slurm.py").write_text("def backend():\n    return 'the other one'\n")
    environment = clean(PYTHONPATH=str(tmp_path), CARREL_HOME=str(lab.home))
    code = "from mlflow.projects.backend.loader import load_backend as b; print(b('slurm'), type(b('carrel')).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120, check=True)
    assert done.stdout == "the other one CarrelBackend\n"
    doctor = subprocess.run(
        [PROGRAMS / "carrel", "doctor", "--json"], capture_output=True, text=True, env=environment, timeout=120
    )
    (check,) = [check for check in json.loads(doctor.stdout)["checks"] if check["name"] == "backends"]
    assert check["status"] == "warn"
    assert "other-slurm" in check["message"]


LOGS_A_RUN = """
import mlflow
with mlflow.start_run() as run:
    mlflow.log_metric("loss", 0.25)
print(run.info.run_id)
"""


def test_an_exported_token_lets_a_plain_mlflow_client_track_and_nothing_else(lab: RealLab) -> None:
    shell = f'export $({PROGRAMS}/carrel token --env --home {lab.home}) && exec {sys.executable} -c "$0"'
    done = subprocess.run(
        ["sh", "-c", shell, LOGS_A_RUN], capture_output=True, text=True, env=clean(), timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert lab.run(done.stdout.split()[-1])["data"]["metrics"][0]["value"] == 0.25
    words = [f"{PROGRAMS}/carrel", "token", "--env", "--home", str(lab.home)]
    printed = subprocess.run(words, capture_output=True, text=True, env=clean(), timeout=PATIENCE, check=True).stdout
    given = dict(word.split("=", 1) for word in printed.split())
    assert set(given) == {"CARREL_URL", "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN"}
    answer = httpx.get(
        f"{given['CARREL_URL']}/api/v1/jobs", headers={"Authorization": f"Bearer {given['MLFLOW_TRACKING_TOKEN']}"}
    )
    assert (answer.status_code, "for tracking only" in answer.json()["detail"]) == (403, True)
    newest = lab.client.tokens()[-1]
    assert (newest.scopes, newest.expires_at is not None, newest.name.startswith("a shell on ")) == (("tracking",), True, True)


def test_a_sign_in_whose_token_ends_meanwhile_is_enough(lab: RealLab, project: Path, tmp_path: Path) -> None:
    """`carrel login` keeps an access token of an hour; a task goes on for longer."""
    around = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "CARREL_HOME": str(tmp_path / "none"), "CARREL_URL": lab.client.url}
    with httpx.Client(base_url=lab.client.url, headers={"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}) as browser:
        form = {"client_id": "carrel-cli"}
        begun = browser.post("/oauth/device_authorization", data=form).raise_for_status().json()
        browser.post("/login", data={"token": (lab.home / "token").read_text().strip()})
        page = browser.get("/device", params={"user_code": begun["user_code"]}).raise_for_status()
        fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page.text))
        browser.post("/device", data={**fields, "decision": "approve"}).raise_for_status()
        grant = {"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": begun["device_code"]}
        tokens = browser.post("/oauth/token", data={**form, **grant}).raise_for_status().json()
    file = token_file(lab.client.url, around)
    file.parent.mkdir(parents=True)
    kept = {"access_token": tokens["access_token"], "refresh_token": tokens["refresh_token"], "expires_at": 4e9}
    file.write_text(json.dumps(kept))
    file.chmod(0o600)
    gate = tmp_path / "go on"
    (project / "MLproject").write_text(
        f"name: tiny\nentry_points:\n  main:\n    command: \"echo waits; while ! test -e '{gate}'; do sleep 0.1; done\"\n"
    )
    process = start(lab, project, env=around)
    assert process.stdout.readline() == "waits\n"
    with contextlib.closing(sqlite3.connect(lab.home / "lab.db", timeout=PATIENCE)) as database, database:
        database.execute("UPDATE access_tokens SET expires_at = 1")
    old = {"Authorization": f"Bearer {tokens['access_token']}"}
    wait_until(lambda: httpx.get(f"{lab.client.url}/api/v1/share", headers=old).status_code == 401, "the token to be over")
    gate.touch()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert json.loads(file.read_text())["access_token"] != tokens["access_token"]
    run = lab.run(lab.newest().run_id)
    assert (run["info"]["status"], pairs(run["data"]["tags"])["mlflow.project.backend"]) == ("FINISHED", "carrel")
