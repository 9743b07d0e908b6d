"""A listing of Slurm's that several share, and who looks themselves."""

import pytest

from carrel.engines.slurm.errors import SlurmDown
from carrel.engines.slurm.listing import SlurmJob
from carrel.engines.slurm.shared import LabsListing, SharedListing

ONE, TWO = (SlurmJob(id=number, state="RUNNING", name=f"carrel.lab.{number}.1", user="alice") for number in (1, 2))


class Slurm:
    def __init__(self, *jobs):
        self.jobs = jobs
        self.asked = 0

    def __call__(self, _since=0.0):
        self.asked += 1
        return self.jobs


def test_an_answer_serves_all_who_may_have_it():
    now = [0.0]
    slurm = Slurm(ONE)
    shared = SharedListing(slurm, monotonic=lambda: now[0])
    for now[0], since, asked in ((10, 10, 1), (12, 5, 1), (12, 10, 1), (12, 11, 2), (30, 12, 2), (30, 30, 3)):
        assert shared(since) == (ONE,)
        assert slurm.asked == asked


def test_an_error_is_everybodys_own_and_is_not_kept():
    def fail():
        raise SlurmDown("no", remedy="none")

    shared = SharedListing(fail)
    for _ in range(2):
        with pytest.raises(SlurmDown):
            shared(0.0)


def test_a_user_whose_jobs_the_lab_does_not_see_looks_alone_for_a_while():
    now = [0.0]
    lab, own = Slurm(), Slurm(ONE, TWO)
    listing = LabsListing(lab, own, monotonic=lambda: now[0])
    assert listing(0.0, frozenset()) == ()
    assert listing(0.0, {1}) == (ONE, TWO)
    assert (lab.asked, own.asked) == (2, 1)
    assert listing(0.0, {1}) == (ONE, TWO)
    assert (lab.asked, own.asked) == (2, 2)
    now[0] = 1000.0
    lab.jobs = (ONE, TWO)
    assert listing(0.0, {1, 2}) == (ONE, TWO)
    assert (lab.asked, own.asked) == (3, 2)


def test_a_job_that_nobody_sees_any_more_does_not_make_the_lab_blind():
    lab, own = Slurm(ONE), Slurm(ONE)
    listing = LabsListing(lab, own)
    assert listing(0.0, {1, 2}) == (ONE,)
    assert listing(0.0, {1}) == (ONE,)
    assert (lab.asked, own.asked) == (2, 1)
