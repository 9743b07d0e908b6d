"""One real Slurm cluster for all tests here."""

import os

import pytest
from slurm_lab import Lab

from carrel.testing.slurm_site import PACKAGES, SlurmSite, missing_for_rest, missing_programs
from carrel.testing.unix_users import common_ground, python_for_all


@pytest.fixture(scope="session")
def slurm_programs():
    """Without Slurm's programs a test is skipped, and fails in CI."""
    missing = missing_programs()
    if missing:
        message = f"{', '.join(missing)} not found (Debian: apt-get install {PACKAGES})"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


@pytest.fixture(scope="session")
def shared_site(slurm_programs):
    with SlurmSite(tokens=not missing_for_rest(), prolog=True, lines=("Licenses=tool:4",)) as site:
        yield site


@pytest.fixture(scope="session")
def everybodys_python():
    """An interpreter with Carrel in it that every Unix user can run, wherever this checkout is."""
    with common_ground() as ground:
        yield python_for_all(ground / "python")


@pytest.fixture
def site(shared_site):
    """The shared cluster; what a test left running is ended after it, and what it killed must be running again."""
    yield shared_site
    shared_site.clear()


@pytest.fixture
def lab(site, tmp_path):
    """A lab with partitions of that cluster; what runs in it is ended with the test."""
    lab = Lab(tmp_path / "lab", site)
    yield lab
    lab.stop()
