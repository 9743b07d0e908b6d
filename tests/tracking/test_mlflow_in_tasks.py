"""``mlflow.run(…, backend="carrel")`` inside a task whose environment has MLflow and no Carrel."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire import v1
from support.lab_process import LabProcess, start_lab

pytestmark = pytest.mark.mlflow

#: MLflow's client waits for its server's answers, and starts slowly beside other tests.
LONG = 4 * PATIENCE


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    process = start_lab(tmp_path_factory.mktemp("multistep") / "home", "--cpus", "8", tracking=True, simulate_gpus=1)
    yield process
    process.end_jobs()
    process.stop()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of these tests, without Carrel and without what its client alone needs."""
    place = tmp_path_factory.mktemp("packages")
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "carrel" not in entry.name and not entry.name.startswith(("httpx", "httpcore")) and entry.suffix != ".pth":
            (place / entry.name).symlink_to(entry)
    return place


PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
STEPS = ["fetch", "sort", "count", "report"]
NESTED = """
entry_points:
  train:
    parameters: {rate: float}
    command: "PYTHON train.py {rate}"
  main:
    command: "PYTHON main.py"
"""
TRAIN = """
import sys
import mlflow
with mlflow.start_run():
    mlflow.log_metric("loss", 1 - float(sys.argv[1]))
"""
#: As MLflow's own examples do it: no word of any backend, and a run that is made before.
SEARCH = """
import mlflow
with mlflow.start_run():
    mlflow.run(".", "train", parameters={"rate": 0.25}, env_manager="local")
    with mlflow.start_run(nested=True) as child:
        made = mlflow.projects.run(".", "train", parameters={"rate": "0.5"}, run_id=child.info.run_id, synchronous=False)
        assert made.wait()
    client = mlflow.MlflowClient()
    print("metrics", *(client.get_run(one).data.metrics["loss"] for one in (made.run_id, child.info.run_id)))
"""
LINE = re.compile(r"carrel: (?:Job (?P<ran>\d+) |Taken from the cache: job (?P<cached>\d+) )")


@pytest.fixture(scope="module")
def project(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of the page, whose program runs where there is MLflow and no Carrel."""
    place = tmp_path_factory.mktemp("words")
    description = re.findall(r"```yaml\n# MLproject\n(.*?)```", PAGE, re.DOTALL)[-1]  # the first is of declared steps
    (program,) = re.findall(r"```python\n# main.py\n(.*?)```", PAGE, re.DOTALL)
    python = Path(sys.base_prefix) / "bin" / "python3"
    (place / "MLproject").write_text(description.replace("python main.py", f"PYTHONPATH={packages}:$PYTHONPATH {python} main.py"))
    (place / "main.py").write_text(program)
    return place


def run(client: Client, project: Path, **more: Any) -> tuple[v1.JobDetail, list[tuple[bool, int]]]:
    """Run the project; its job, and for each step whether it came from the cache, and its job."""
    gpus = more.get("backend_config", {}).get("gpus", 0)
    parent = client.submit_project(project, resources=v1.ResourceRequest(cpus=1, memory="1G", gpus=gpus), **more)
    ended = client.wait(parent.id, timeout=LONG)
    log = "".join(client.stream_log(parent.id))
    assert ended.state == "COMPLETED", log
    return ended, [(bool(found["cached"]), int(found["cached"] or found["ran"])) for found in LINE.finditer(log)]


def test_a_project_of_several_steps_runs_and_the_second_time_takes_them_from_the_cache(lab: LabProcess, project: Path) -> None:
    with Client(url=lab.url, token=lab.token) as client:
        parent, steps = run(client, project)
        jobs = [client.job(number) for _, number in steps]
        assert [(cached, job.entry_point, job.state) for (cached, _), job in zip(steps, jobs, strict=True)] == [
            (False, step, "COMPLETED") for step in STEPS
        ]
        assert {job.parent for job in jobs} == {parent.id}
        # The steps had the lab's one GPU while their parent waited, which never had one.
        assert [len(job.devices) for job in (parent, *jobs)] == [0, 1, 1, 1, 1]
        assert b"words: 3" in b"".join(client.log(jobs[-1].id))
        _, again = run(client, project)
        assert again == [(True, number) for _, number in steps]
    headers = {"Authorization": f"Bearer {lab.token}"}
    with httpx.Client(base_url=f"{lab.url}/mlflow/api/2.0/mlflow", headers=headers, timeout=PATIENCE) as mlflow:
        for job in jobs:
            found = mlflow.get("/runs/get", params={"run_id": job.run_id}).raise_for_status().json()["run"]
            assert {tag["key"]: tag["value"] for tag in found["data"]["tags"]}["mlflow.parentRunId"] == parent.run_id


def test_the_runs_of_an_unchanged_program_are_jobs_where_the_task_says_nested(
    lab: LabProcess, packages: Path, tmp_path: Path
) -> None:
    python = Path(sys.base_prefix) / "bin" / "python3"
    (tmp_path / "MLproject").write_text(NESTED.replace("PYTHON", f"PYTHONPATH={packages}:$PYTHONPATH {python}"))
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "main.py").write_text(SEARCH)
    (said,) = re.findall(r"^mlflow run \. --backend carrel --backend-config '(.*)'$", PAGE, re.MULTILINE)
    config = json.loads(said)
    with Client(url=lab.url, token=lab.token) as client:
        parent, steps = run(client, tmp_path, backend_config=config)
        jobs = [client.job(number) for _, number in steps]
        assert [
            (cached, job.entry_point, job.parent, len(job.devices)) for (cached, _), job in zip(steps, jobs, strict=True)
        ] == [(False, "train", parent.id, 1)] * 2
        assert "metrics 0.5 0.5" in "".join(client.stream_log(parent.id))
        # The second time both come from the cache, and the run that the program made is not left empty.
        second, again = run(client, tmp_path, backend_config=config)
        assert again == [(True, number) for _, number in steps]
        assert "metrics 0.5 0.5" in "".join(client.stream_log(second.id))


EXAMPLE = Path(__file__).parents[2] / "examples" / "steps"


def test_the_example_is_a_search_of_four_jobs_whose_second_run_takes_them_from_the_cache(lab: LabProcess) -> None:
    """All of them ask for the lab's one GPU, and so does their parent."""
    config = {"gpus": 1, "nested": {"cache": True, "mem": "1G", "gpus": 1}}
    with Client(url=lab.url, token=lab.token) as client:
        parent, steps = run(client, EXAMPLE, backend_config=config)
        assert [cached for cached, _ in steps] == [False] * 4
        assert [job.entry_point for job in (client.job(number) for _, number in steps)] == ["features", *["train"] * 3]
        stops = [event.data for event in client.events(parent.id) if event.data.get("state") == "SUSPENDED"]
        assert len(stops) == 4, stops
        assert "best: regularization" in "".join(client.stream_log(parent.id))
        second, again = run(client, EXAMPLE, backend_config=config)
        assert again == [(True, number) for _, number in steps]
        assert second.suspended_seconds == 0


CHOOSES = """
import mlflow
mlflow.set_experiment("churn")
with mlflow.start_run(run_name="first try"):
    mlflow.log_metric("auc", 0.9)
other = mlflow.create_experiment("aside")
with mlflow.start_run(experiment_id=other, run_name="second"):
    mlflow.log_param("rate", 3)
"""
STAYS = """
import mlflow
mlflow.set_experiment("churn")
mlflow.log_metric("auc", 0.8)
"""


def test_a_program_chooses_its_experiment_as_it_does_at_home(lab: LabProcess, packages: Path, tmp_path: Path) -> None:
    command = f"PYTHONPATH={packages}:$PYTHONPATH {Path(sys.base_prefix) / 'bin' / 'python3'}"
    entries = {"main": f"{command} chooses.py", "stays": f"{command} stays.py"}
    (tmp_path / "MLproject").write_text(json.dumps({"entry_points": {name: {"command": it} for name, it in entries.items()}}))
    (tmp_path / "chooses.py").write_text(CHOOSES)
    (tmp_path / "stays.py").write_text(STAYS)
    small = v1.ResourceRequest(cpus=1, memory="1G")
    with Client(url=lab.url, token=lab.token) as client:
        jobs = [
            client.submit_project(tmp_path, resources=small),
            client.submit_project(tmp_path, entry_point="stays", experiment="churn", resources=small),
        ]
        chooses, stays = (client.wait(job.id, timeout=LONG) for job in jobs)
        assert (chooses.state, stays.state) == ("COMPLETED", "COMPLETED"), "".join(client.stream_log(chooses.id))
    headers = {"Authorization": f"Bearer {lab.token}"}
    with httpx.Client(base_url=f"{lab.url}/mlflow/api/2.0/mlflow", headers=headers, timeout=PATIENCE) as mlflow:
        for experiment, name in (("churn", "first try"), ("aside", "second")):
            found = mlflow.get("/experiments/get-by-name", params={"experiment_name": experiment}).raise_for_status()
            ask = {"experiment_ids": [found.json()["experiment"]["experiment_id"]], "filter": f"tags.mlflow.runName = '{name}'"}
            (made,) = mlflow.post("/runs/search", json=ask).raise_for_status().json()["runs"]
            assert {"key": "carrel.job", "value": str(chooses.id)} in made["data"]["tags"]
            assert made["info"]["status"] == "FINISHED"
        # A job that was submitted to the experiment which its program names goes on in its own run.
        continued = mlflow.get("/runs/get", params={"run_id": stays.run_id}).raise_for_status().json()["run"]
        own = [metric for metric in continued["data"]["metrics"] if not metric["key"].startswith("system/")]
        assert [metric["value"] for metric in own] == [0.8]


EARLY = """
import os, subprocess, sys
print("began with", os.environ.get("MLFLOW_RUN_ID"), flush=True)
import mlflow
print("continues", os.environ["MLFLOW_RUN_ID"], flush=True)
mlflow.log_metric("auc", 0.7)
below = [sys.executable, "-c", "import os, mlflow; print('below', os.environ.get('MLFLOW_RUN_ID'))"]
subprocess.run(below, check=True)
"""


def test_a_program_that_begins_before_its_run_is_there_waits_for_it_when_it_imports_mlflow(
    lab: LabProcess, packages: Path, tmp_path: Path
) -> None:
    python = Path(sys.base_prefix) / "bin" / "python3"
    (tmp_path / "early.sh").write_text(f"PYTHONPATH={packages}:$PYTHONPATH {python} early.py\n")
    (tmp_path / "early.py").write_text(EARLY)
    mlflow = httpx.Client(
        base_url=f"{lab.url}/mlflow/api/2.0/mlflow", headers={"Authorization": f"Bearer {lab.token}"}, timeout=LONG
    )
    with mlflow, Client(url=lab.url, token=lab.token) as client:
        mlflow.get("/experiments/get", params={"experiment_id": "0"}).raise_for_status()  # it is there
        server = int((lab.home / "run" / "mlflow.lock").read_text())
        os.kill(server, signal.SIGSTOP)  # it is slow
        try:
            job = client.submit_project(tmp_path, entry_point="early.sh", resources=v1.ResourceRequest(cpus=1, memory="1G"))
            wait_until(lambda: b"began with None" in b"".join(client.log(job.id)), "the program", LONG)
        finally:
            os.kill(server, signal.SIGCONT)
        ended = client.wait(job.id, timeout=LONG)
        said = "".join(client.stream_log(job.id))
        assert ended.state == "COMPLETED", said
        run = mlflow.get("/runs/get", params={"run_id": ended.run_id}).raise_for_status().json()["run"]
    # As with a run that is there from the start: MLflow takes the variable away when it begins the run, and none is left below.
    assert {f"continues {ended.run_id}", "below None"} <= set(said.splitlines())
    assert {"auc": 0.7}.items() <= {metric["key"]: metric["value"] for metric in run["data"]["metrics"]}.items()
