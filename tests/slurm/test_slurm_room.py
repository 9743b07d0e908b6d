"""Slurm takes so many jobs of a user and no more: the others wait, in order, and are submitted when there is room."""

from __future__ import annotations

import pytest

from carrel.domain.job import JobState
from carrel.domain.launch import Preparing
from carrel.engines.slurm.commands import SlurmCommands, SlurmFull
from carrel.engines.slurm.engine import SlurmEngine
from carrel.engines.slurm.room import LATE, Room
from carrel.testing.builders import Ear, LabHome, make_launch
from carrel.testing.engine_contract import TOKEN
from carrel.testing.slurm_site import SlurmSite
from carrel.testing.waiting import wait_until

PLACE = ("physics", "normal", "gpu")


class TestRoom:
    def setup_method(self):
        self.now = 0.0
        self.room = Room(lambda: self.now)

    def wait(self, *jobs):
        for job in jobs:
            if not self.room.keeps_back(PLACE, (job, 1)):
                self.room.refused(PLACE, (job, 1), "AssocMaxSubmitJobLimit")

    def test_nobody_waits_before_slurm_has_refused_one(self):
        assert self.room.keeps_back(PLACE, (1, 1)) == ""
        assert self.room.next() == []
        assert self.room.next_at() is None

    def test_one_refusal_stands_for_all_who_ask_for_the_same(self):
        self.wait(4, 5, 6)
        assert self.room.keeps_back(PLACE, (7, 1)) == "AssocMaxSubmitJobLimit"
        assert self.room.keeps_back(("physics", "high", "gpu"), (8, 1)) == ""
        assert self.room.next() == []

    def test_each_end_lets_one_try_in_order(self):
        self.wait(6, 4, 5)
        self.room.ended()
        for job in (4, 5):
            assert self.room.next() == [(job, 1)]
            assert self.room.keeps_back(PLACE, (job, 1)) == ""
            self.room.taken(PLACE, (job, 1))
            assert self.room.next() == []
            self.room.ended()
        assert self.room.keeps_back(PLACE, (9, 1)) != ""  # who comes later does not go first

    def test_without_an_end_it_is_tried_ever_more_seldom_but_always(self):
        self.wait(1)
        pauses = []
        for _ in range(10):
            began, self.now = self.now, self.room.next_at()
            pauses.append(self.now - began)
            assert self.room.next() == [(1, 1)]
            self.room.refused(PLACE, (1, 1), "AssocMaxSubmitJobLimit")
        assert pauses == sorted(pauses)
        assert pauses[-1] == LATE

    def test_where_there_was_room_there_may_be_more(self):
        self.wait(1, 2, 3)
        self.now = self.room.next_at()
        for job in (1, 2, 3):
            assert self.room.next() == [(job, 1)]
            self.room.taken(PLACE, (job, 1))
        assert self.room.next_at() is None

    def test_who_is_cancelled_leaves_and_holds_nobody_up(self):
        self.wait(1, 2)
        self.room.leave((1, 1))
        self.room.ended()
        assert self.room.next() == [(2, 1)]
        self.room.leave((2, 1))
        assert self.room.next_at() is None


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm-engine")
def test_more_jobs_than_slurm_takes_wait_and_run_in_order(limited: SlurmSite, tmp_path) -> None:
    home = LabHome(tmp_path)
    commands = SlurmCommands(environ=limited.environ, json=False, timeout=60)
    engine = SlurmEngine(spool=home.spool, run_dir=home.run, lab="room", environ=limited.environ, commands=commands, interval=0.3)
    try:
        ear = Ear(engine)
        ready = f"while [ ! -e {home.root}/go ]; do sleep 0.1; done"
        launches = [make_launch(home, f"{ready}; echo {number} >> {home.root}/ran", job_id=number) for number in range(1, 10)]
        for launch in launches:
            engine.start(launch, token=TOKEN)

        def waits(launch):
            return any(isinstance(one, Preparing) and "MaxSubmitJob" in one.message for one in ear.story(launch).records)

        wait_until(lambda: all(waits(launch) for launch in launches[3:]))
        with pytest.raises(SlurmFull):
            commands.submit(["--parsable"], "#!/bin/sh\ntrue\n")
        engine.cancel(9, 1, by="alice")
        assert ear.ended(launches[8]).state is JobState.CANCELLED
        (home.root / "go").touch()
        for launch in launches[:8]:
            assert ear.ended(launch).state is JobState.COMPLETED
            engine.forget(launch.job_id, 1, over=False)
    finally:
        engine.close()
    numbers = [int((home.attempt(launch).path / "slurm").read_text()) for launch in launches[:8]]
    assert numbers == sorted(numbers), "they were not submitted in order"
    assert sorted((home.root / "ran").read_text().split()) == [str(number) for number in range(1, 9)]
