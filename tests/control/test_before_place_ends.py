"""What jobs need before their place, where it ends badly, is not begun, or nobody wants it any more."""

from __future__ import annotations

from dataclasses import replace

from played import BADLY, READY, TASK, WELL, Played, builds, job, news, over, reasons, two_that_wait

from carrel.core.control.prerequisites import Prepares
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import (
    Ended,
    Observation,
    Preparing,
)
from carrel.core.domain.task import InputSpec


def cancelled(number: int) -> Job:
    return replace(job(number), state=JobState.CANCELLED, cancelled_by="ada", ended_at=1.0)


STOPPED = Ended(state=JobState.CANCELLED, reason=Reason(code="Cancelled", message=""))
BUILDS = ("BuildEnvironment", "Its environment is being built: this begins.")


def test_a_log_that_nobody_reads_goes() -> None:
    """All may try once more: then nobody has failed of it."""
    played = Played(builds("alpha"), builds("alpha"))
    found = played.before_place()
    assert all(found.keeps(replace(job(number), retries_left=1), 0.0) for number in (1, 2))
    assert list(found.turn(0.0, None)) == []
    found.hear([news(BADLY, log_size=70)], 1.0)
    assert [one.id for one in found.turn(1.0, None)] == [1, 2]
    assert (played.kept_logs, played.logs, played.forgotten) == ([], [], [1])


def test_nothing_begins_while_nothing_may_start_and_those_who_wait_read_why() -> None:
    full = Reason(code="StorageFull", message="The disk is full.")
    played = Played(builds("alpha"), builds("beta"), builds("beta"))
    found = played.before_place()
    assert found.keeps(job(1), 0.0)
    assert list(found.turn(0.0, None)) == []
    assert [found.keeps(job(number), 1.0) for number in (2, 3)] == [True, True]
    assert list(found.turn(1.0, full)) == []
    assert played.started == [1]
    assert reasons(found, 1, 2, 3) == [BUILDS, *[("StorageFull", "The disk is full.")] * 2]
    assert found.reason(4) is None
    found.hear([news(READY, WELL)], 2.0)
    assert [one.id for one in found.turn(2.0, full)] == [1], "what has been brought is brought"
    assert list(found.turn(3.0, None)) == []
    assert played.started == [1, 2]


def test_what_cannot_be_begun_is_left_to_the_attempts() -> None:
    played = Played(builds("alpha"), builds("alpha"), builds("alpha"))
    found = played.before_place()
    assert [found.keeps(job(number), 0.0) for number in (1, 2)] == [True, True]
    played.full = True
    assert [one.id for one in found.turn(0.0, None)] == [1, 2]
    assert (found.reason(1), found.keeps(job(1), 1.0), found.keeps(job(2), 1.0)) == (None, False, False)
    played.full = False
    assert found.keeps(job(3), 2.0)
    assert list(found.turn(2.0, None)) == []
    assert played.started == [3]


def test_where_the_rules_see_to_nothing_any_more_nobody_waits_for_it() -> None:
    played = Played(builds("alpha"), builds("alpha"), builds("alpha"))
    found = played.before_place()
    assert [found.keeps(job(number), 0.0) for number in (1, 2)] == [True, True]
    played.prepares = Prepares.NOTHING
    assert [one.id for one in found.turn(0.0, None)] == [1, 2]
    assert [found.keeps(job(number), 1.0) for number in (1, 2, 3)] == [False, False, False]
    assert played.started == []


def test_a_fetch_whose_job_is_cancelled_is_carried_on_by_another() -> None:
    found, played = two_that_wait()
    found.hear([news(Preparing(message="fetching half of it"))], 1.0)
    found.forget(cancelled(1))
    assert (played.ended, played.ended_by) == ([1], ["ada"])
    found.hear([news(STOPPED)], 2.0)
    assert list(found.turn(2.0, None)) == []
    assert (played.started, played.forgotten) == ([1, 2], [1])
    assert reasons(found, 2) == [("StageIn", "Its inputs are fetched before it is placed: this begins.")]
    found.hear([replace(over(JobState.COMPLETED, "Completed"), job_id=2)], 3.0)
    assert [one.id for one in found.turn(3.0, None)] == [2]


def test_where_nobody_waits_any_more_nothing_is_left_of_it() -> None:
    found, played = two_that_wait()
    found.forget(cancelled(1))
    found.forget(cancelled(2))
    found.hear([news(STOPPED)], 2.0)
    assert list(found.turn(2.0, None)) == []
    assert found.keeps(job(3), 3.0)
    assert list(found.turn(3.0, None)) == []
    assert played.started == [1, 3]


def test_a_fetch_that_nobody_wants_is_ended_by_the_lab() -> None:
    found, played = two_that_wait()
    found.forget(replace(job(1), state=JobState.FAILED, ended_at=1.0))
    assert (played.ended, played.ended_by) == ([1], ["the lab"])


def test_who_leaves_before_it_has_begun_takes_nobody_along() -> None:
    for gone, started in (((), [1]), ((1,), [2]), ((1, 2), [])):
        played = Played()
        found = played.before_place()
        assert [found.keeps(job(number), 0.0) for number in (1, 2)] == [True, True]
        for number in gone:
            found.forget(cancelled(number))
        assert list(found.turn(1.0, None)) == []
        assert (played.started, played.ended) == (started, [])


def test_who_is_cancelled_before_its_failure_is_written_down_has_not_failed() -> None:
    found, _ = two_that_wait()
    found.hear([over(JobState.FAILED, "InputFailed")], 1.0)
    found.forget(cancelled(1))
    assert [one.id for one in found.turn(2.0, None)] == [2]


def test_a_runner_that_somebody_else_has_ended_is_left_to_the_attempts() -> None:
    found, played = two_that_wait()
    found.hear([news(STOPPED)], 2.0)
    assert [one.id for one in found.turn(2.0, None)] == [1, 2]
    assert played.started == [1]


def test_a_build_that_fails_after_its_job_was_cancelled_is_not_begun_again() -> None:
    played = Played(builds("alpha"), builds("alpha"))
    found = played.waits(1, 2)
    found.forget(cancelled(1))
    found.hear([news(BADLY, log_size=70)], 1.0)
    assert [(one.id, one.state) for one in found.turn(1.0, None)] == [(2, JobState.FAILED)]
    assert (played.started, played.kept_logs, played.logs) == ([1], [1], [])


def test_news_of_others_hides_no_news() -> None:
    played = Played(builds("alpha"), builds("beta"))
    found = played.waits(1, 2)
    strange = news(WELL, of=77)
    found.hear([replace(strange, attempt=1), strange, news(READY, WELL), news(READY, WELL, of=2)], 1.0)
    assert [one.id for one in found.turn(1.0, None)] == [1, 2]


def test_a_build_that_is_begun_again_says_so() -> None:
    played = Played(builds("alpha"))
    found = played.waits(1)
    found.hear([news(Preparing(message="installing 2 packages"))], 1.0)
    found.hear([Observation(job_id=1, attempt=0, gone=True)], 2.0)
    assert list(found.turn(2.0, None)) == []
    assert reasons(found, 1) == [BUILDS]


def test_everybody_who_waits_is_told_how_far_it_is() -> None:
    played = Played(*[builds("alpha")] * 30)
    found = played.waits(*range(1, 31))
    found.hear([news(Preparing(message="installing"))], 1.0)
    assert played.told[0] == "Its environment is being built: installing."
    assert set(played.told[1:]) == {"Its environment, the same as that of job 1, is being built: installing."}
    assert len(played.told) == 25


def test_of_a_thousand_fetches_the_newest_are_remembered() -> None:
    tasks = [replace(TASK, inputs=(InputSpec(path="in", uri=f"https://host/{number}"),)) for number in range(1001)]
    played = Played(*tasks, tasks[0], tasks[1], tasks[1000])
    found = played.before_place()
    for number in range(1, 1002):
        assert found.keeps(job(number), 0.0)
        assert list(found.turn(0.0, None)) == []
        found.hear([replace(over(JobState.COMPLETED, "Completed"), job_id=number)], 0.0)
        assert [one.id for one in found.turn(0.0, None)] == [number]
    assert [found.keeps(job(number), 599.0) for number in (1002, 1003, 1004)] == [True, False, False]


def test_what_was_fetched_ten_minutes_ago_is_fetched_again() -> None:
    for later, again in ((600.9, False), (601.0, True)):
        found, _ = two_that_wait()
        found.hear([over(JobState.COMPLETED, "Completed")], 1.0)
        assert [one.id for one in found.turn(1.0, None)] == [1, 2]
        assert found.keeps(job(3), later) is again
