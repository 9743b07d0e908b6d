"""A running engine, and one call that runs a command to its end in it."""

import itertools
import os

import pytest

from carrel.engines.local import LocalEngine
from carrel.node.devices import DeviceLocks, this_node
from carrel.testing.builders import EngineListener, LabHome, make_launch

TOKEN = "carrel-test-token-0123456789"


class Lab:
    def __init__(self, root, cgroups):
        self.home = LabHome(root)
        self.engine = LocalEngine(
            spool=self.home.spool,
            node=this_node(),
            run_dir=self.home.run,
            environ=os.environ,
            locks=DeviceLocks(root / "locks"),
            cgroups=cgroups,
        )
        self.listener = EngineListener(self.engine)
        self._ids = itertools.count(1)

    def start(self, command, **fields):
        launch = make_launch(self.home, command, job_id=next(self._ids), **fields)
        self.engine.start(launch, token=TOKEN)
        return launch

    def run(self, command, **fields):
        return self.ended(self.start(command, **fields))

    def ended(self, launch):
        return self.listener.ended(launch)

    def cancel(self, launch):
        self.engine.cancel(launch.job_id, launch.attempt, by="bob")

    def log(self, launch):
        return self.home.attempt(launch).log

    def output(self, number=None):
        """The log of the last job."""
        jobs = sorted(self.home.spool.root.iterdir(), key=lambda path: int(path.name))
        return (jobs[-1] / "1" / "log").read_bytes()

    def wrote(self, launch, text):
        self.listener.wrote(launch, self.log(launch), text)

    def story(self, launch):
        return self.listener.story(launch)


@pytest.fixture(params=[True, False], ids=["kernel", "watched"])
def any_lab(tmp_path, request):
    lab = Lab(tmp_path, request.param)
    yield lab
    lab.engine.close()


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path, True)
    yield lab
    lab.engine.close()
