"""A server that is killed again and again, at any moment: every job runs exactly once, and every end is told truly."""

import os
import random
import subprocess
import sys
import time

import pytest

from carrel.core.domain.ports import Attempt
from carrel.engines.local import LocalEngine
from carrel.node.devices import this_node
from carrel.testing.builders import EngineListener, LabHome, make_launch

#: Records each job (one line, as a store would) and then starts it, adopting first what was recorded before.
_SERVER = """
import os, sys
from pathlib import Path
from carrel.node.devices import this_node
from carrel.core.domain.ports import Attempt
from carrel.engines.local import LocalEngine
from carrel.testing.builders import LabHome, make_launch
home = LabHome(Path(sys.argv[1]))
command = sys.argv[2]
first = int(sys.argv[3])
recorded = open(home.root / "recorded", "a+")
recorded.seek(0)
known = [int(line) for line in recorded.read().splitlines()]
engine = LocalEngine(spool=home.spool, node=this_node(), run_dir=home.run, environ=os.environ)
engine.observe(lambda observations: None)
engine.adopt([(Attempt(job_id=job, number=1), make_launch(home, command, job_id=job), "t" * 20) for job in known])
print("up", flush=True)
for job in range(first, first + 12):
    recorded.write(f"{job}\\n")
    recorded.flush()
    engine.start(make_launch(home, command, job_id=job), token="t" * 20)
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_and_nothing_runs_twice(tmp_path, seed):
    home = LabHome(tmp_path)
    command = f'echo "$CARREL_JOB_ID" >> {tmp_path}/ran; sleep 0.0$((RANDOM % 10)); exit $((CARREL_JOB_ID % 5))'
    chance = random.Random(seed)
    for round_number in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", _SERVER, tmp_path, command, str(1 + 12 * round_number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as server:
            assert server.stdout.readline() == b"up\n"
            deadline = time.monotonic() + chance.uniform(0, 0.15)
            while time.monotonic() < deadline:  # the moment itself is what is tested
                pass
            server.kill()
    jobs = [int(line) for line in (tmp_path / "recorded").read_text().splitlines()]
    launches = [make_launch(home, command, job_id=job) for job in jobs]
    engine = LocalEngine(spool=home.spool, node=this_node(), run_dir=home.run, environ=os.environ)
    try:
        listener = EngineListener(engine)
        engine.adopt([(Attempt(job_id=launch.job_id, number=1), launch, "t" * 20) for launch in launches])
        ends = {launch.job_id: listener.ended(launch) for launch in launches}
    finally:
        engine.close()
    assert {job: end.exit_code for job, end in ends.items()} == {job: job % 5 for job in jobs}, ends
    assert sorted(int(line) for line in (tmp_path / "ran").read_text().splitlines()) == sorted(jobs)
    for launch in launches:
        assert home.attempt(launch).journal.read_text().count('"type":"ended"') == 1
