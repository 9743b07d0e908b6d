"""What today's packages change: a baseline runs again in an environment that is resolved anew, and in the one that it had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.client import Client
from carrel.core.domain.errors import Invalid
from carrel.testing.waiting import PATIENCE
from carrel.wire.v1 import CalibrationView
from support.lab_process import start_lab
from support.package_index import PackageIndex
from support.ports import kept_port


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    with PackageIndex(tmp_path / "index") as index:
        index.add("alpha")
        index.open.set()
        yield index


@pytest.fixture
def client(tmp_path: Path, index: PackageIndex) -> Iterator[Client]:
    home = tmp_path / "home"
    with kept_port() as port:
        lab = start_lab(home, "--port", str(port), simulate_gpus=1, variables=index.variables)
        with Client(home=home) as client:
            yield client
        lab.stop()


def calibrated(client: Client, baseline: int, *, fresh: bool) -> CalibrationView:
    begun = client.calibrate(baseline, fresh=fresh)
    client.wait(begun.job, timeout=PATIENCE)
    return client.calibration(baseline, begun.job)


def test_packages_that_were_published_since_are_what_differs(client: Client, index: PackageIndex, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    says = "python -c 'import alpha; print(alpha.version)' > outputs/version"
    (code / "MLproject").write_text(f'name: t\npython_env: env.yaml\nentry_points:\n  main:\n    command: "{says}"\n')
    (code / "env.yaml").write_text("dependencies: [alpha]\n")
    job = client.wait(client.submit_project(code).id, timeout=PATIENCE)
    baseline = client.set_baseline(job.id)
    assert (job.state, baseline.project) == ("COMPLETED", "t")
    index.add("alpha", "2.0")
    same = calibrated(client, baseline.id, fresh=False)
    assert (same.outcome, same.fresh) == ("same", False)
    moved = calibrated(client, baseline.id, fresh=True)
    assert (moved.outcome, moved.told) == ("moved", "different; outputs/version; alpha 1.0 -> 2.0")
    assert client.job(moved.job).rerun_of is None
    assert client.job(moved.job).notes == [f"Job {job.id} again, with its environment resolved anew."]
    rows = client.baseline(baseline.id).rows
    assert [(row.job, row.calibration) for row in rows] == [(same.job, "same lock"), (moved.job, "fresh")]
    # And once more, when there is something newer.
    index.add("alpha", "3.0")
    assert calibrated(client, baseline.id, fresh=True).told.endswith("alpha 1.0 -> 3.0")
    # What the project's own lock says is not resolved.
    (code / "env.yaml").unlink()
    (code / "MLproject").write_text("name: bare\nentry_points:\n  main:\n    command: 'true'\n")
    bare = client.set_baseline(client.wait(client.submit_project(code).id, timeout=PATIENCE).id)
    with pytest.raises(Invalid, match="there is nothing to resolve anew"):
        client.calibrate(bare.id, fresh=True)
