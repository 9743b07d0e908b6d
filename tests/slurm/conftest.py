"""A real Slurm cluster for the tests here: one for those of the engine, one for those of whole labs.

Two groups of pytest-xdist ("slurm-engine" and "slurm-lab") of about the same length; each stays on one worker, which has its own
cluster. A test that starts a cluster for itself alone needs no group.
"""

import os
import pwd

import pytest
from slurm_engines import slurm_engine
from slurm_lab import Lab

from carrel.testing.builders import EngineListener, LabHome
from carrel.testing.waiting import wait_until
from support.slurm_faults import SlurmFaults
from support.slurm_site import PACKAGES, SlurmSite, missing_programs
from support.unix_users import common_ground, python_for_all

GROUPS = {"slurm-engine", "slurm-lab"}


def pytest_collection_modifyitems(items):
    for item in items:
        if "shared_site" in getattr(item, "fixturenames", ()):
            groups = {str(mark.args[0]) for mark in item.iter_markers("xdist_group")}
            if len(groups & GROUPS) != 1 or groups - GROUPS:
                told = f"{item.nodeid} uses a shared cluster: it belongs to one of the groups {', '.join(sorted(GROUPS))}."
                raise pytest.UsageError(f"{told} Give it pytest.mark.xdist_group, or each worker starts a cluster for it.")


@pytest.fixture(scope="session")
def slurm_programs():
    """Without Slurm's programs a test is skipped, and fails in CI."""
    missing = missing_programs()
    if missing:
        message = f"{', '.join(missing)} not found (Debian: apt-get install {PACKAGES})"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        pytest.skip("Slurm's programs want a user with an entry in passwd(5)")


@pytest.fixture(scope="session")
def shared_site(slurm_programs):
    with SlurmSite(prolog=True, lines=("Licenses=tool:4",)) as site:
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
def home(site, tmp_path):
    return LabHome(tmp_path)


@pytest.fixture
def faults(site, tmp_path):
    return SlurmFaults(tmp_path / "bin", site.environ)


@pytest.fixture
def engines(home):
    """Makes engines, which are closed after the test."""
    made = []

    def make(environ, **options):
        made.append(slurm_engine(home, environ, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def listener(engine):
    return EngineListener(engine)


@pytest.fixture
def lab(site, tmp_path):
    """A lab with partitions of that cluster; what runs in it is ended with the test."""
    lab = Lab(tmp_path / "lab", site)
    yield lab
    lab.stop()


@pytest.fixture
def limited(site):
    """The cluster, with a limit of three jobs in Slurm for whoever runs the tests."""

    def limit(number):
        site.run("sacctmgr", "-i", "-Q", "modify", "user", site.layout.user, "set", f"MaxSubmitJobs={number}")
        wait_until(lambda: f"|{number if number >= 0 else ''}|" in associations())

    def associations():
        # As the controller has it, which hears of it a little later.
        words = site.run("scontrol", "show", "assoc_mgr", "flags=assoc", f"users={site.layout.user}").out
        found = {part.split("=")[1].split("(")[0] for part in words.split() if part.startswith("MaxSubmitJobs=")}
        return f"|{''.join(found).replace('N', '')}|"

    limit(3)
    yield site
    limit(-1)
