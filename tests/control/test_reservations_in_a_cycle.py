"""A scheduler wakes up when a window that is kept for others is over, and says why a job waits for it."""

from __future__ import annotations

from scheduled import Scheduled, job, machines, rules, settings

from carrel.core.domain.reservation import Reservation

COURSE = Reservation(name="course", begin=1000.0, end=5000.0, users=frozenset({"cyd"}), reason="deep learning")


def test_a_cycle_happens_when_a_window_begins_and_when_it_is_over() -> None:
    durations = {1: 2000.0, 2: 2000.0, 3: 1000.0, 4: 1000.0}
    lab = Scheduled(machines(4, durations), settings(rules(), reserved=lambda: (COURSE,), tells=False))
    scheduler = lab.scheduler
    # Job 3 is over when the window begins, if it takes all the time that it has from SIGTERM to SIGKILL; job 4 is not.
    jobs = [job(1, time=2000), job(2, "cyd", time=2000), job(3, time=990), job(4, time=991)]
    assert lab.runs(0.0, *jobs) == {2, 3}
    assert scheduler.next_at() == 1000.0
    hold = scheduler.look(0.0).wait_of(1)
    assert 'kept for reservation "course" (deep learning)' in hold.reason.message
    lab.cycle(1000.0)
    assert scheduler.next_at() == 5000.0
    assert lab.runs(5000.0) == {1, 4}
    assert scheduler.next_at() is None
