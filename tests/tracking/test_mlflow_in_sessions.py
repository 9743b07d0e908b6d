"""MLflow in a notebook of a session: nothing has to be set, and what cells log is their owner's."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab
from support.notebook_client import Kernel, SessionBrowser

pytestmark = pytest.mark.mlflow

#: MLflow is imported slowly beside other tests.
LONG = 4 * PATIENCE
LOGS = """
import mlflow
mlflow.log_param("rate", 0.5)
mlflow.log_metric("loss", 0.25)
run = mlflow.active_run().info.run_id
mlflow.end_run()
print([run])
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    process = start_lab(tmp_path_factory.mktemp("sessions") / "home", "--cpus", "8", tracking=True, simulate_gpus=1)
    yield process
    process.end_jobs()
    process.stop()


@pytest.fixture(scope="module")
def ada(lab: LabProcess) -> Iterator[Client]:
    with Client(url=lab.url, token=lab.token) as client:
        token = client.add_user("ada").token
    with Client(url=lab.url, token=token) as client:
        yield client


@pytest.fixture(scope="module")
def session(ada: Client) -> Iterator[int]:
    job = ada.start_session(SessionRequest(name="notebook", time="2h")).job.id
    wait_until(lambda: ada.session(job).ready, "the session")
    yield job
    ada.cancel(job)


@pytest.fixture
def kernel(ada: Client, session: int, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """The kernel of a notebook that has the test's name."""
    with SessionBrowser(ada.open_session(session), patience=LONG) as browser:
        kernel = browser.start_kernel(f"{request.node.name}.ipynb")
        kernel.listen()
        yield kernel
        kernel.close()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `%pip install mlflow` brings, and no Carrel."""
    place = tmp_path_factory.mktemp("packages")
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "carrel" not in entry.name and entry.suffix != ".pth":
            (place / entry.name).symlink_to(entry)
    return place


def run_of(lab: LabProcess, token: str, run: str) -> dict[str, Any] | None:
    """A run as the user of that token sees it; None: there is none for them."""
    answer = httpx.get(
        f"{lab.url}/mlflow/api/2.0/mlflow/runs/get",
        params={"run_id": run},
        headers={"Authorization": f"Bearer {token}"},
        timeout=LONG,
    )
    return None if answer.status_code == 404 else answer.raise_for_status().json()["run"]


def test_what_a_cell_logs_is_the_owners_and_says_where_it_comes_from(
    lab: LabProcess, ada: Client, session: int, kernel: Kernel, packages: Path, request: pytest.FixtureRequest
) -> None:
    assert kernel.execute(f"import sys; sys.path.append({str(packages)!r})").status == "ok"
    found = kernel.execute(LOGS)
    assert found.status == "ok", found
    (run,) = ast.literal_eval(next(line for line in found.text.splitlines() if line.startswith("[")))
    logged = run_of(lab, ada.token, run)
    assert [(one["key"], one["value"]) for one in logged["data"]["metrics"]] == [("loss", 0.25)]
    tags = {one["key"]: one["value"] for one in logged["data"]["tags"]}
    notebook = f"{request.node.name}.ipynb"
    expected = {"carrel.session": str(session), "mlflow.user": "ada", "mlflow.source.name": notebook}
    assert {name: tags.get(name) for name in expected} == expected
    assert tags["mlflow.source.type"] == "NOTEBOOK"
    assert run_of(lab, lab.token, run) is None, "it is nobody else's"


def test_where_the_package_is_missing_python_says_so(kernel: Kernel) -> None:
    found = kernel.execute("import mlflow")
    assert (found.status, found.error) == ("error", "ModuleNotFoundError")
