"""The runs of a `carrel why` in MLflow: below one run of the search, which says what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel import Client
from carrel.core.domain.errors import Unavailable
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import start_lab

PROGRAM = """\
import pathlib
SCALE = 1.0
pathlib.Path("outputs/loss").write_text(str(SCALE))
"""


@pytest.mark.mlflow
def test_a_search_is_a_tree_of_runs_whose_root_has_the_answer(tmp_path: Path) -> None:
    lab = start_lab(tmp_path / "home", "--cpus", "4", simulate_gpus=0, tracking=True)
    with Client(url=lab.url, token=lab.token, patience=PATIENCE) as client:
        wait_until(lambda: client.lab().tracking == "ready")
        jobs = [_job(client, tmp_path / name, scale) for name, scale in (("a", "1.0"), ("b", "2.0"))]
        found = client.why(*jobs)
        while not found.answer:
            for run in client.why(*jobs, submit=True).variants:
                if run.job is not None:
                    client.wait(run.job)
            # MLflow may have the run of a job that has just ended some time later.
            found = wait_until(lambda: _known(client, jobs), "the results of the runs")
        assert found.answer == "explained"
        runs = {client.job(one.job).run_id for one in found.variants if one.job is not None}
        tags = [_run(client, run or "")["tags"] for run in runs]
        (search,) = {row["mlflow.parentRunId"] for row in tags}
        ended = wait_until(lambda: one if (one := _run(client, search))["status"] == "FINISHED" else None, "the search's end")
        assert ended["name"] == f"why {jobs[0]} {jobs[1]}: train"
        assert (ended["tags"]["carrel.answer"], ended["tags"]["carrel.why"]) == ("explained", f"{jobs[0]}, {jobs[1]}")
        assert ended["tags"]["mlflow.note.content"] == " ".join(found.told)
        assert f"/jobs/why?first={jobs[0]}&second={jobs[1]}" in ended["tags"]["carrel.url"]
    lab.end_jobs()
    lab.stop()


def _job(client: Client, directory: Path, scale: str) -> int:
    directory.mkdir()
    (directory / "train.py").write_text(PROGRAM.replace("1.0", scale))
    project = "name: train\nentry_points: {main: {command: python train.py}}\ncarrel: {resources: {cpus: 1, memory: 256M}}\n"
    (directory / "MLproject").write_text(project)
    return client.wait(client.submit_project(directory).id).id


def _known(client: Client, jobs: list[int]) -> Any:
    try:
        found = client.why(*jobs)
    except Unavailable:
        return None
    return found if all(run.results for run in found.variants if run.job is not None) else None


def _run(client: Client, run_id: str) -> dict[str, Any]:
    answer = httpx.get(
        f"{client.url}/mlflow/api/2.0/mlflow/runs/get",
        params={"run_id": run_id},
        headers={"Authorization": f"Bearer {client.token}"},
        timeout=120,
    )
    run = answer.raise_for_status().json()["run"]
    tags = {one["key"]: one["value"] for one in run["data"]["tags"]}
    return {"tags": tags, "status": run["info"]["status"], "name": run["info"]["run_name"]}
