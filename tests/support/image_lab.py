"""Labs whose jobs run in images: one with the walls of the kernel, and one without."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from support.lab_process import LabProcess, start_lab
from support.namespaces import why_no_namespaces


def need_image_programs() -> None:
    """Skip where images can be neither fetched nor run."""
    missing = [name for name in ("skopeo", "umoci") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found (Debian: apt-get install {' '.join(missing)})")
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")


@pytest.fixture(scope="module", params=["kernel", "none"], name="lab")
def image_lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    """A lab of its own user, whose home is in no container's way; for all tests of a module."""
    need_image_programs()
    home = tmp_path_factory.mktemp("images") / "lab"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text(f'isolation = "{request.param}"\ntracking = false\n')
    (home.parent / "user").mkdir()
    lab = start_lab(home, "--cpus", "16", simulate_gpus=1, variables={"HOME": str(home.parent / "user")})
    yield lab
    lab.end_jobs()
    lab.stop()
