"""Several engines behind one: each attempt is with the one that its place names."""

import os
from dataclasses import replace

import pytest

from carrel.core.domain.job import JobState
from carrel.core.domain.partition import read_cluster
from carrel.core.domain.ports import Attempt
from carrel.engines.local import LocalEngine
from carrel.engines.router import Router
from carrel.node.devices import DeviceLocks, this_node
from carrel.testing.builders import EngineListener, LabHome, make_launch
from carrel.testing.engine_contract import TOKEN, EngineContract
from carrel.testing.waiting import wait_until


def local_engine(home, name):
    return LocalEngine(
        spool=home.spool,
        node=this_node(()),
        run_dir=home.root / name,
        environ={**os.environ, "LC_ENGINE": name},
        locks=DeviceLocks(home.root / "locks"),
    )


def router(home):
    # A second machine in the place of the cluster: it is started in the same way.
    return Router(
        route=lambda launch: read_cluster(launch.node)[0],
        make=lambda name: local_engine(home, name),
        own=local_engine(home, "here"),
    )


class TestRouter(EngineContract):
    @pytest.fixture
    def home(self, tmp_path):
        return LabHome(tmp_path)

    @pytest.fixture
    def make_engine(self, home):
        return lambda: router(home)


@pytest.fixture
def home(tmp_path):
    return LabHome(tmp_path)


def test_each_attempt_is_with_its_engine_also_after_a_restart(home):
    os.mkfifo(home.root / "go")
    tells = "echo with $LC_ENGINE"
    here = make_launch(home, tells)
    there, late, waits = (
        replace(make_launch(home, command, job_id=job_id), node="slurm:gpu")
        for job_id, command in ((2, f"{tells}; read line < {home.root}/go"), (3, tells), (4, "sleep 600"))
    )
    first = router(home)
    listener = EngineListener(first)
    for launch in (here, there, waits):
        first.start(launch, token=TOKEN)
    assert listener.ended(here).state is JobState.COMPLETED
    for launch in (there, waits):
        wait_until(lambda launch=launch: home.attempt(launch).claim.exists())
    first.close()

    second = router(home)
    try:
        listener = EngineListener(second)
        adopted = [(Attempt(job_id=launch.job_id, number=1), launch, TOKEN) for launch in (there, late, waits)]
        second.adopt(adopted)
        second.cancel(4, 1, by="ada")
        assert listener.ended(waits).state is JobState.CANCELLED
        (home.root / "go").write_text("on\n")
        for launch in (there, late):
            assert listener.ended(launch).state is JobState.COMPLETED
            assert home.attempt(launch).log.read_text() == "with slurm\n"
            second.forget(launch.job_id, 1)
        assert home.attempt(here).log.read_text() == "with here\n"
        second.cancel(99, 1, by="ada")
        second.preempt(99, 1, None)
    finally:
        second.close()
