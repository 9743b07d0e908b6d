"""What jobs need before their place: who waits for what with whom, and what is done of it at once.

Whoever drives that may fail in the middle (a full disk, a database that is down): nobody who waited is lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from played import BADLY, READY, TASK, WELL, Played, builds, job, launch_of, news, over, reasons, two_that_wait

from carrel.core.control.before_place import BeforePlace
from carrel.core.control.prerequisites import Prepares
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import (
    InputsReady,
    Launch,
    Observation,
    Preparing,
)
from carrel.core.domain.slurm import SlurmRequest


def test_whom_the_caller_could_not_deal_with_comes_again() -> None:
    for state, code in ((JobState.COMPLETED, "Completed"), (JobState.FAILED, "InputFailed")):
        found, _ = two_that_wait()
        found.hear([over(state, code)], 1.0)
        broken = found.turn(1.0, None)
        first = next(broken)
        broken.close()  # the caller has failed
        assert first.id == 1
        assert [one.id for one in found.turn(2.0, None)] == [1, 2]
        assert list(found.turn(3.0, None)) == []


def test_who_is_cancelled_before_that_does_not_come_again() -> None:
    found, _ = two_that_wait()
    found.hear([over(JobState.COMPLETED, "Completed")], 1.0)
    found.turn(1.0, None).close()
    found.forget(replace(job(1), state=JobState.CANCELLED, ended_at=2.0))
    assert [one.id for one in found.turn(2.0, None)] == [2]


def test_an_environment_that_is_there_is_looked_for_once_in_a_while_and_nothing_begins() -> None:
    played = Played(builds("alpha"), builds("alpha"), builds("alpha"))
    played.there.add("alpha")
    found = played.waits()
    assert [found.keeps(job(number), now) for number, now in ((1, 0.0), (2, 9.0), (3, 11.0))] == [False, False, False]
    assert (played.started, played.looks) == ([], 2)


def test_a_recipe_that_cannot_be_looked_up_is_left_to_who_builds_it() -> None:
    def broken(_launch: Launch) -> bool:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    played = Played(builds("alpha"))
    played.built = broken  # type: ignore[method-assign]
    played.waits(1)
    assert played.started == [1]


def test_jobs_with_one_environment_wait_for_one_build_whoever_of_them_is_cancelled() -> None:
    played = Played(builds("alpha"), builds("alpha", source="other.txt"), builds("beta"))
    found = played.waits(1, 2, 3)
    assert [(launch.job_id, launch.build, launch.stage_in, launch.attempt) for launch in played.launches] == [
        (1, True, False, 0),
        (3, True, False, 0),
    ]
    found.hear([news(Preparing(message="installing 2 packages"))], 1.0)
    assert reasons(found, 1, 2, 3) == [
        ("BuildEnvironment", "Its environment is being built: installing 2 packages."),
        ("BuildEnvironment", "Its environment, the same as that of job 1, is being built: installing 2 packages."),
        ("BuildEnvironment", "Its environment is being built: this begins."),
    ]
    found.forget(replace(job(1), state=JobState.CANCELLED))
    assert played.ended == []
    found.hear([news(READY, WELL)], 2.0)
    assert [one.id for one in found.turn(2.0, None)] == [2]
    found.forget(replace(job(3), state=JobState.CANCELLED))  # the last one
    assert played.ended == [3]


def test_code_makes_environments_differ_only_where_it_is_a_part_of_them() -> None:
    def snapshots(**more: Any) -> Played:
        return Played(
            *(replace(builds("-e ."), snapshot=digest, environment=builds("-e .", **more).environment) for digest in "ab")
        )

    apart, together = snapshots(local=True), snapshots()
    apart.waits(1, 2)
    together.waits(1, 2)
    assert (apart.started, together.started) == ([1, 2], [1])


def test_two_builds_of_one_user_at_once_and_fetches_beside_them() -> None:
    both = replace(builds("delta"), inputs=TASK.inputs)
    played = Played(builds("alpha"), builds("beta"), builds("gamma"), both)
    found = played.waits(1, 2, 3, 4)
    assert played.started == [1, 2, 4]
    ((code, message),) = reasons(found, 3)
    assert code == "BuildEnvironment"
    assert message == ("Its environment is built before it is placed; at most 2 builds of one user, and 8 in all, run at once.")
    found.hear([news(READY, WELL)], 1.0)
    assert [one.id for one in found.turn(1.0, None)] == [1]
    assert played.started == [1, 2, 4, 3]


def test_what_another_has_built_meanwhile_is_not_begun() -> None:
    played = Played(builds("alpha"), builds("beta"), builds("gamma"))
    found = played.waits(1, 2, 3)
    played.there.add("gamma")
    found.hear([news(READY, WELL)], 1.0)
    assert [one.id for one in found.turn(1.0, None)] == [1, 3]
    assert played.started == [1, 2]


def test_an_environment_and_inputs_are_seen_to_by_one_runner() -> None:
    both = replace(builds("alpha"), inputs=TASK.inputs)
    played = Played(both, TASK, both)
    found = played.waits(1)
    ((launch),) = played.launches
    assert (launch.build, launch.stage_in) == (True, True)
    assert reasons(found, 1) == [("BuildEnvironment", "Its environment is being built: this begins.")]
    found.hear([news(READY, Preparing(message="fetching the input in"))], 1.0)
    assert reasons(found, 1) == [("StageIn", "Its inputs are fetched before it is placed: fetching the input in.")]
    inputs = InputsReady(digests={"in": "sha256:0"})
    found.hear([news(inputs, WELL)], 2.0)
    assert [one.id for one in found.turn(2.0, None)] == [1]
    assert found.found(1) == inputs
    assert [found.keeps(job(2), 3.0), found.found(2)] == [False, inputs]  # fetched a moment ago, for whatever environment
    assert found.keeps(job(3), 30.0)  # nobody says any more that the environment is there: it is built, and nothing fetched
    list(found.turn(30.0, None))
    assert [(one.build, one.stage_in) for one in played.launches[1:]] == [(True, False)]
    found.hear([news(READY, WELL, of=3)], 31.0)
    assert [one.id for one in found.turn(31.0, None)] == [3]
    assert found.found(3) == inputs


def test_who_fails_of_a_build_has_its_log_or_is_told_where_it_is() -> None:
    played = Played(*(builds("alpha") for _ in range(3)))
    found = played.waits(1, 2)
    assert found.keeps(replace(job(3), retries_left=1), 0.0)
    found.hear([news(BADLY, log_size=70)], 1.0)
    after = {one.id: (one.state, one.reason.message) for one in found.turn(1.0, None)}
    assert after == {
        1: (JobState.FAILED, "No such package.\n"),
        2: (
            JobState.FAILED,
            "No such package.\nIt is the environment of job 1, too, whose log says more: `carrel logs 1`.",
        ),
        3: (JobState.PENDING, ""),
    }
    assert (played.kept_logs, played.logs) == ([1], [(1, 70)])


def test_a_build_whose_runner_is_lost_is_begun_again_and_then_left_to_the_attempts() -> None:
    played = Played(builds("alpha"), builds("alpha"))
    found = played.waits(1, 2)
    gone = Observation(job_id=1, attempt=0, gone=True)
    found.hear([gone], 1.0)
    assert (list(found.turn(1.0, None)), played.started) == ([], [1, 1])
    found.hear([gone], 2.0)
    assert [one.id for one in found.turn(2.0, None)] == [1, 2]
    assert played.kept_logs == []


def on_a_cluster(played: Played) -> BeforePlace:
    stand: Any = played
    return BeforePlace(
        jobs=stand, events=stand, engine=stand, prepares=lambda _job: Prepares.THERE,
        launch=lambda one, task: replace(launch_of(one, task), node="slurm:gpu"), built=played.built,
        token=lambda one: f"token of {one.id}", withdrawal=lambda _job, _task: (),
    )  # fmt: skip


def test_what_was_built_on_a_cluster_is_known_for_hours_and_attempts_say_that_it_is_still_there() -> None:
    played = Played(*[builds("alpha")] * 5)
    found = on_a_cluster(played)
    assert found.keeps(job(1), 0.0)
    assert list(found.turn(0.0, None)) == []
    assert (played.started, played.launches[0].build) == ([1], True)
    found.hear([news(READY, WELL)], 1.0)
    assert [one.id for one in found.turn(1.0, None)] == [1]
    hour = 3600.0
    assert not found.keeps(job(2), 5 * hour)
    found.hear([replace(news(READY, of=2), attempt=1)], 5 * hour)
    assert not found.keeps(job(3), 10 * hour)
    # Of other news of attempts, and of attempts of which it knows nothing, nothing follows.
    found.hear([replace(news(Preparing(message="starting"), of=3), attempt=1), replace(news(READY, of=99), attempt=1)], 10 * hour)
    assert found.keeps(job(4), 20 * hour)


def test_nodes_of_another_kind_have_environments_of_their_own() -> None:
    played = Played(*(replace(builds("alpha"), slurm=SlurmRequest(constraint=kind)) for kind in ("fast", "slow", "fast")))
    found = on_a_cluster(played)
    assert [found.keeps(job(number), 0.0) for number in (1, 2, 3)] == [True, True, True]
    assert list(found.turn(0.0, None)) == []
    assert played.started == [1, 2]
