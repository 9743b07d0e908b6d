"""Slurm takes so many jobs of a user and no more: the others go back into the lab's line, which keeps its order."""

from __future__ import annotations

from collections import Counter

import pytest
from slurm_lab import Lab, go_on

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Ended
from carrel.core.domain.ports import Attempt
from carrel.engines.attempts import Watched, write_launch
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.engines.slurm.errors import SlurmFull
from carrel.engines.slurm.submit_capacity import AGAIN, CLOSED, SETTLES, SubmitCapacity
from carrel.testing.builders import EngineListener, LabHome, make_launch
from carrel.testing.engine_contract import TOKEN
from carrel.testing.waiting import PATIENCE, wait_until
from support.slurm_faults import SlurmFaults
from support.slurm_site import SlurmSite

PLACE = ("physics", "normal", "gpu")
WORD = "AssocMaxSubmitJobLimit"


class TestRoom:
    def setup_method(self):
        self.now = 100.0
        self.room = SubmitCapacity(lambda: self.now)

    def refused(self):
        return self.room.refused(PLACE, WORD, "so many")

    def test_nobody_goes_back_before_slurm_has_refused_one(self):
        assert self.room.closed(PLACE) is None
        assert self.room.settles(PLACE) is None

    def test_what_was_on_its_way_when_slurm_refused_one_goes_back_unasked(self):
        assert not self.refused()
        assert self.room.closed(PLACE) == (WORD, "so many")
        assert self.room.closed(("physics", "high", "gpu")) is None
        self.now += CLOSED
        assert self.room.closed(PLACE) is None

    def test_each_end_lets_one_try_once_slurm_has_heard_of_it(self):
        self.refused()
        self.room.ended()
        self.room.ended()
        for _ in range(2):
            assert self.room.closed(PLACE) is None
            assert self.room.settles(PLACE) in (None, 100.0 + SETTLES)
            self.now = 100.0 + SETTLES
            assert self.room.settles(PLACE) is None
            self.room.taken(PLACE)
        assert self.room.closed(PLACE) == (WORD, "so many")

    def test_after_an_end_slurm_is_asked_three_times_at_most(self):
        self.refused()
        self.room.ended()
        self.now += SETTLES
        for seconds in AGAIN:
            assert self.refused()
            assert self.room.settles(PLACE) == self.now + seconds
            self.now += seconds
            assert self.room.closed(PLACE) is None
        assert not self.refused()

    def test_an_end_counts_for_a_place_where_nobody_was_refused_before(self):
        """As after a restart of the lab, when three end and the next three come before Slurm has heard of it."""
        for _ in range(3):
            self.room.ended()
        assert self.room.settles(PLACE) is None
        assert self.refused()
        for _ in range(3):
            assert self.room.closed(PLACE) is None
            assert self.room.settles(PLACE) in (None, 100.0 + AGAIN[0])
            self.now = 100.0 + AGAIN[0]
            self.room.taken(PLACE)
        assert not self.refused()
        assert self.room.closed(PLACE) == (WORD, "so many")

    def test_an_end_of_long_ago_is_no_reason_to_ask_again(self):
        self.room.ended()
        self.now += 60.0
        assert not self.refused()

    def test_once_slurm_takes_one_again_nothing_is_known(self):
        self.refused()
        self.now += CLOSED
        self.room.taken(PLACE)
        self.room.ended()
        assert self.room.settles(PLACE) is None


@pytest.fixture
def faults(limited: SlurmSite, tmp_path) -> SlurmFaults:
    return SlurmFaults(tmp_path / "bin", limited.environ)


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm-engine")
def test_whom_slurm_refuses_is_given_back_and_those_behind_it_without_asking(
    limited: SlurmSite, faults: SlurmFaults, tmp_path
) -> None:
    home = LabHome(tmp_path)
    place = {"spool": home.spool, "run_dir": home.run, "lab": "room", "environ": faults.environ, "interval": 0.3}
    commands = SlurmCommands(environ=faults.environ, json=False, timeout=60)
    engine = SlurmEngine(commands=commands, **place)
    try:
        listener = EngineListener(engine)
        ready = f"while [ ! -e {home.root}/go ]; do sleep 0.1; done"
        launches = [make_launch(home, f"{ready}; echo {number} >> {home.root}/ran", job_id=number) for number in range(1, 10)]
        for launch in launches:
            engine.start(launch, token=TOKEN)
        for launch in launches[3:]:
            assert listener.ended(launch).state is JobState.PREEMPTED
            assert listener.ended(launch).reason.code == WORD
        assert "MaxSubmitJobs is 3" in listener.ended(launches[3]).reason.message
        assert len(faults.calls("sbatch")) < 9
        with pytest.raises(SlurmFull):
            commands.submit(["--parsable"], "#!/bin/sh\ntrue\n")
    finally:
        engine.close()
    # The lab was killed before it had heard of it: it hears of it now, and nothing is submitted.
    asked = len(faults.calls("sbatch"))
    engine = SlurmEngine(commands=commands, **place)
    try:
        listener = EngineListener(engine)
        engine.adopt([(Attempt(job_id=launch.job_id, number=1), launch, TOKEN) for launch in launches])
        for launch in launches[3:]:
            assert listener.ended(launch).reason.code == WORD
            engine.forget(launch.job_id, 1, over=False)
            assert not home.attempt(launch).path.exists()
        (home.root / "go").touch()
        for launch in launches[:3]:
            assert listener.ended(launch).state is JobState.COMPLETED
            engine.forget(launch.job_id, 1)
        assert len(faults.calls("sbatch")) == asked
        # An end is a reason to ask again, for another attempt of the next one.
        wait_until(lambda: not limited.run("squeue", "-h", "-o", "%i").out.split())
        again = make_launch(home, f"echo 4 >> {home.root}/ran", job_id=4, attempt=2)
        engine.start(again, token=TOKEN)
        assert listener.ended(again).state is JobState.COMPLETED
    finally:
        engine.close()
    assert sorted((home.root / "ran").read_text().split()) == ["1", "2", "3", "4"]


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm-engine")
def test_a_lab_that_dies_between_the_refusal_and_its_note_submits_nothing_twice(limited: SlurmSite, tmp_path) -> None:
    """sbatch was called and has answered, and nothing of that was written down."""
    home = LabHome(tmp_path)
    blocks = [limited.submit("sleep 600", "--time=5", "--mem=16M") for _ in range(3)]
    launch = make_launch(home, f"echo ran >> {home.root}/ran")
    write_launch(Watched(launch=launch, token=TOKEN, directory=home.attempt(launch)))
    (home.attempt(launch).path / "slurm").touch()
    engine = SlurmEngine(spool=home.spool, run_dir=home.run, lab="killed", environ=limited.environ, interval=0.3)
    try:
        listener = EngineListener(engine)
        engine.adopt([(Attempt(job_id=launch.job_id, number=1), launch, TOKEN)])
        ended = listener.ended(launch)
        assert isinstance(ended, Ended)
        assert (ended.state, ended.reason.code) == (JobState.PREEMPTED, WORD)
    finally:
        engine.close()
    for block in blocks:
        limited.run("scancel", str(block))
    assert not (home.root / "ran").exists()


def run_through(lab: Lab, elements: int) -> None:
    """An array, and a job of higher priority that comes later and goes before what waits."""
    wait, go = go_on(lab)
    ran = lab.home.parent / "ran"
    first = lab.submit(f"{wait}; echo $SLURM_ARRAY_TASK_ID >> {ran}", array=f"1-{elements}")
    held = lab.until(lab.client.element(first, 4).id, lambda job: "3 of its owner's jobs are in Slurm" in job.message)
    assert (held.state, held.reason) == ("PENDING", WORD)
    assert "MaxSubmitJobs is 3" in held.message
    wait_until(lambda: Counter(job.state for job in lab.client.array(first).jobs)["PENDING"] == elements - 3)
    urgent = lab.submit(f"echo urgent >> {ran}", qos="high")
    lab.until(urgent, lambda job: job.reason == WORD)
    lab.kill()
    lab.start()
    assert lab.client.job(lab.client.element(first, elements).id).state == "PENDING"
    go.touch()
    assert lab.ended(urgent).state == "COMPLETED"
    assert {job.state for job in lab.client.wait_array(first, timeout=20 * PATIENCE)} == {"COMPLETED"}
    lines = ran.read_text().split()
    assert Counter(lines) == Counter([*(str(index) for index in range(1, elements + 1)), "urgent"])
    assert lines.index("urgent") < 8, "it did not go before those that waited"
    assert {row.state for job in lab.client.array(first).jobs for row in lab.client.job(job.id).attempts} == {"COMPLETED"}


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm-lab")
def test_a_lab_keeps_those_that_slurm_refuses_pending_and_in_its_own_order(limited: SlurmSite, lab: Lab) -> None:
    run_through(lab, 12)


@pytest.mark.soak
@pytest.mark.slurm
@pytest.mark.xdist_group("slurm-lab")
def test_two_hundred_of_which_slurm_takes_three_at_a_time_end_right(limited: SlurmSite, lab: Lab) -> None:
    run_through(lab, 200)
