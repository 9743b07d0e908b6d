"""Inputs that MLflow keeps, fetched from a real one through the lab's proxy, with a job's token."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tracking_support import Tracking

from carrel.lab.tracking.tenancy import workspace_of
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.fetching import fetch
from carrel.node.staging.lab import LabFiles

API = "/api/2.0/mlflow"


@dataclass(frozen=True)
class Kept:
    run: str
    model: str
    #: As MLflow names it.
    artifacts: str
    lab: LabFiles
    stranger: LabFiles


@pytest.fixture(scope="module")
def kept(tracking: Tracking) -> Kept:
    with tracking.client("alice-token") as alice:
        name = f"staging-{time.time_ns()}"
        experiment = alice.post(f"{API}/experiments/create", json={"name": name}).raise_for_status().json()["experiment_id"]
        made = alice.post(f"{API}/runs/create", json={"experiment_id": experiment}).raise_for_status().json()
        run = made["run"]["info"]["run_id"]
        for path, content in (("model/weights.bin", b"weights"), ("model/deep/a b.txt", b"spaced"), ("metrics.csv", b"1,2")):
            place = f"/api/2.0/mlflow-artifacts/artifacts/{experiment}/{run}/artifacts/{path}"
            alice.put(place, content=content).raise_for_status()
        artifacts = f"mlflow-artifacts:/workspaces/{workspace_of('alice')}/{experiment}/{run}/artifacts"
        alice.post(f"{API}/registered-models/create", json={"name": name}).raise_for_status()
        version = {"name": name, "source": f"{artifacts}/model", "run_id": run}
        alice.post(f"{API}/model-versions/create", json=version).raise_for_status()
        alice.post(
            f"{API}/model-versions/create", json={"name": name, "source": f"runs:/{run}/model", "run_id": run}
        ).raise_for_status()
        alias = {"name": name, "alias": "best", "version": "1"}
        alice.post(f"{API}/registered-models/alias", json=alias).raise_for_status()
    url = tracking.url.removesuffix("/mlflow")
    return Kept(run, name, artifacts, LabFiles(url, "alice-job-token"), LabFiles(url, "bob-token"))


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_file_a_directory_and_all_of_a_run(kept: Kept, tmp_path: Path) -> None:
    one = fetch(f"runs:/{kept.run}/metrics.csv", tmp_path / "m.csv", lab=kept.lab)
    assert (tmp_path / "m.csv").read_bytes() == b"1,2"
    assert one.startswith("sha256:")
    fetch(f"runs:/{kept.run}/model", tmp_path / "model", lab=kept.lab)
    assert files(tmp_path / "model") == {"weights.bin": b"weights", "deep/a b.txt": b"spaced"}
    fetch(f"runs:/{kept.run}", tmp_path / "all", lab=kept.lab)
    assert len(files(tmp_path / "all")) == 3


@pytest.mark.parametrize("form", ["models:/{}/1", "models:/{}/2", "models:/{}@best"])
def test_a_registered_model(kept: Kept, tmp_path: Path, form: str) -> None:
    fetch(form.format(kept.model), tmp_path / "m", lab=kept.lab)
    assert files(tmp_path / "m") == {"weights.bin": b"weights", "deep/a b.txt": b"spaced"}
    fetch(form.format(kept.model) + "/weights.bin", tmp_path / "w", lab=kept.lab)
    assert (tmp_path / "w").read_bytes() == b"weights"


def test_what_mlflow_names_by_its_place(kept: Kept, tmp_path: Path) -> None:
    fetch(f"{kept.artifacts}/model/deep", tmp_path / "deep", lab=kept.lab)
    assert files(tmp_path / "deep") == {"a b.txt": b"spaced"}


def test_what_is_not_there_or_not_theirs_is_said(kept: Kept, tmp_path: Path) -> None:
    for uri, lab, words in (
        (f"runs:/{kept.run}/gone", kept.lab, "There is nothing at"),
        (f"runs:/{'0' * 32}", kept.lab, "not found"),
        (f"models:/{kept.model}/7", kept.lab, "not found"),
        (f"runs:/{kept.run}/metrics.csv", kept.stranger, "not found"),
        (f"{kept.artifacts}/model", kept.stranger, "There is nothing at|could not be read"),
        (f"models:/{kept.model}/1", kept.stranger, "not found"),
    ):
        with pytest.raises(InputFailed, match=words):
            fetch(uri, tmp_path / "none", lab=lab)
        assert not (tmp_path / "none").exists()
