"""Which artifacts nobody refers to: asked of a real MLflow's database."""

from __future__ import annotations

import os
import time
from pathlib import Path

import httpx
import pytest
from tracking_support import Tracking

from carrel.lab.tracking.artifacts import ArtifactStore
from carrel.lab.tracking.server import default_database
from carrel.lab.tracking.tenancy import workspace_of

pytestmark = pytest.mark.mlflow
API = "/api/2.0/mlflow"


def make_run(client: httpx.Client, experiment: str) -> str:
    """A run with one artifact."""
    made = client.post(f"{API}/runs/create", json={"experiment_id": experiment}).raise_for_status().json()
    run = str(made["run"]["info"]["run_id"])
    path = f"/api/2.0/mlflow-artifacts/artifacts/{experiment}/{run}/artifacts/model.bin"
    client.put(path, content=b"weights").raise_for_status()
    return run


def test_only_what_no_run_and_no_model_names_is_unused(tracking: Tracking) -> None:
    home = tracking.server.socket.parents[2] if "run" in tracking.server.socket.parts else None
    with tracking.client("alice-token") as alice:
        created = alice.post(f"{API}/experiments/create", json={"name": f"artifacts-{time.time_ns()}"}).raise_for_status()
        experiment = created.json()["experiment_id"]
        kept, deleted, registered = (make_run(alice, experiment) for _ in range(3))
        model = f"model-{time.time_ns()}"
        alice.post(f"{API}/registered-models/create", json={"name": model}).raise_for_status()
        source = f"mlflow-artifacts:/workspaces/{workspace_of('alice')}/{experiment}/{registered}/artifacts"
        version = {"name": model, "source": source, "run_id": registered}
        alice.post(f"{API}/model-versions/create", json=version).raise_for_status()
        for run in (deleted, registered):
            alice.post(f"{API}/runs/delete", json={"run_id": run}).raise_for_status()
    root = home / "mlflow" / "artifacts"
    (place,) = root.glob(f"workspaces/*/{experiment}")
    stray = place / ("0" * 32) / "artifacts"
    stray.mkdir(parents=True)
    os.utime(stray, (1.0, 1.0))
    store = ArtifactStore(root, default_database(home))
    now = time.time()

    def unused(deleted_before: float | None) -> set[Path]:
        found = store.unused(unused_before=now - 60, deleted_before=deleted_before)
        return {path for path in found if path.is_relative_to(place)}

    assert unused(None) == {stray}
    assert unused(now - 3600) == {stray}
    assert unused(now + 3600) == {stray, place / deleted / "artifacts"}
    assert (place / kept / "artifacts" / "model.bin").read_bytes() == b"weights"
    os.utime(stray, (now, now))
    assert unused(None) == set()


def test_a_lab_whose_mlflow_never_ran_has_no_artifacts(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "mlflow" / "artifacts", default_database(tmp_path))
    assert list(store.unused(unused_before=time.time(), deleted_before=None)) == []
    assert not (tmp_path / "mlflow").exists()
