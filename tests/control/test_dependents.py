"""Jobs that start after others: when they may, when they never can, and that nobody is forgotten."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import scheduled
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.control.dependents import Dependents, named
from carrel.core.domain.array import ArrayElement
from carrel.core.domain.dependency import After, Condition, Verdict, describe_dependency, read_dependency, write_dependency
from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import ENDED, Job, JobState

#: What names its jobs.
NAMING = [after for after in After if after not in (After.SINGLETON, After.CORRESPONDING)]
#: A job, an element of array 1 (jobs 1 to 3) or all of it.
NAMED = st.one_of(
    st.builds(Condition, after=st.sampled_from(NAMING), job_id=st.integers(1, 4)),
    st.builds(Condition, after=st.sampled_from(NAMING), job_id=st.just(1), element=st.integers(0, 2)),
    st.builds(Condition, after=st.sampled_from(NAMING), job_id=st.just(1), whole=st.just(True)),
)
CONDITIONS = st.lists(NAMED, min_size=1, max_size=4, unique=True)
LIVES = st.lists(st.sampled_from(sorted(ENDED)), min_size=4, max_size=4)


class Jobs(dict[int, Job]):
    """All jobs by number, as the store knows them."""

    def elements(self, array_id: int, index: int | None = None) -> list[Job]:
        found = [one for one in self.values() if one.element is not None and one.element.array_id == array_id]
        return [one for one in found if index is None or (one.element is not None and one.element.index == index)]

    def namesake(self, job: Job) -> Job | None:
        earlier = [one for one in self.values() if one.id < job.id and one.name == job.name and not one.state.ended]
        return max(earlier, key=lambda one: one.id, default=None)


def job(
    number: int, state: JobState = JobState.PENDING, dependency: str = "", *, started: bool = False,
    element: ArrayElement | None = None,
) -> Job:  # fmt: skip
    began = 1.0 if started else None
    return scheduled.job(number, name="job", state=state, dependency=dependency, started_at=began, element=element)


def member(index: int, of: int = 1, text: str = "0-2") -> ArrayElement:
    return ArrayElement(array_id=of, index=index, array=text)


def four() -> Jobs:
    """An array of three, and a job beside it."""
    return Jobs({number: job(number, element=member(number - 1) if number < 4 else None) for number in (1, 2, 3, 4)})


@given(st.lists(st.one_of(NAMED, st.just(Condition(after=After.SINGLETON))), min_size=1, max_size=4, unique=True))
def test_what_is_written_is_read(conditions: list[Condition]) -> None:
    assert read_dependency(write_dependency(conditions)) == tuple(conditions)
    told = describe_dependency(tuple(conditions))
    assert all(f" {condition.job_id}" in told for condition in conditions if condition.job_id)


def test_several_jobs_of_one_condition() -> None:
    assert read_dependency("afterok:12:13_4, afterany:14_*,singleton,aftercorr:15:16_*") == (
        Condition(after=After.WELL, job_id=12),
        Condition(after=After.WELL, job_id=13, element=4),
        Condition(after=After.ENDED, job_id=14, whole=True),
        Condition(after=After.SINGLETON),
        Condition(after=After.CORRESPONDING, job_id=15),
        Condition(after=After.CORRESPONDING, job_id=16),
    )


@pytest.mark.parametrize(
    "text",
    ["", "afterok", "afterok:", "12", "afterok:a", "afterok:1_", "afterok:1_x", "singleton:1", "afterok:1?afterany:2", ","],
)
def test_what_slurm_has_and_the_lab_has_not_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=re.escape(f'dependency is "{text}"')):
        read_dependency(text)


@given(CONDITIONS, LIVES, st.permutations([1, 2, 3, 4]))
def test_a_job_comes_into_the_line_exactly_when_its_conditions_hold(
    conditions: list[Condition], ends: list[JobState], order: list[int]
) -> None:
    """Whatever happens to the others, in whatever order: after each change those are found whom it concerns."""
    jobs = four()
    dependents = Dependents(jobs)
    waiting = job(9, dependency=write_dependency(conditions))
    verdict = dependents.verdict(waiting)
    changes = [replace(jobs[number], started_at=1.0, state=JobState.RUNNING) for number in order]
    changes += [replace(jobs[number], started_at=1.0, state=ends[number - 1]) for number in order]
    for change in changes:
        jobs[change.id] = change
        found = dependents.after(change)
        assert found in ([], [waiting])
        if found:
            verdict = dependents.verdict(waiting)
        now = {condition.verdict(named(condition, jobs)) for condition in conditions}
        expected = Verdict.NEVER if Verdict.NEVER in now else Verdict.OPEN if Verdict.OPEN in now else Verdict.MET
        assert verdict is expected
        assert dependents.job(9) == (waiting if expected is Verdict.OPEN else None)
        if verdict is not Verdict.OPEN:
            break
    else:
        raise AssertionError("When all others have ended it is decided.")


def test_who_was_started_once_or_is_over_waits_for_nobody() -> None:
    jobs = Jobs({1: job(1)})
    dependents = Dependents(jobs)
    waiting = job(2, dependency="afterok:1")
    assert dependents.verdict(waiting) is Verdict.OPEN
    assert dependents.verdict(replace(waiting, attempt=1)) is Verdict.MET
    assert dependents.job(2) is None
    dependents.verdict(waiting)
    assert dependents.verdict(replace(waiting, state=JobState.CANCELLED)) is Verdict.MET
    assert dependents.after(replace(jobs[1], state=JobState.COMPLETED)) == []


def test_an_array_has_ended_well_when_all_of_it_has_and_not_well_when_one_has_not() -> None:
    well, bad = job(1, JobState.COMPLETED, element=member(0)), job(2, JobState.FAILED, element=member(1))
    runs = job(3, JobState.RUNNING, started=True, element=member(2))
    (ok,), (not_ok,), (started,) = (read_dependency(f"{after}:1_*") for after in ("afterok", "afternotok", "after"))
    assert ok.verdict([well, runs]) is Verdict.OPEN
    assert ok.verdict([well, bad, runs]) is Verdict.NEVER
    assert ok.verdict([well, well]) is Verdict.MET
    assert not_ok.verdict([well, bad, runs]) is Verdict.OPEN
    assert not_ok.verdict([well, bad]) is Verdict.MET
    assert not_ok.verdict([well, well]) is Verdict.NEVER
    assert started.verdict([well, runs]) is Verdict.MET


def test_each_element_waits_for_the_one_of_its_own_index() -> None:
    jobs = four()
    dependents = Dependents(jobs)
    second = [job(10 + index, dependency="aftercorr:1", element=member(index, of=10)) for index in range(3)]
    assert [dependents.verdict(one) for one in second] == [Verdict.OPEN] * 3
    assert dependents.after(replace(jobs[2], state=JobState.COMPLETED)) == [second[1]]
    assert dependents.verdict(second[1]) is Verdict.MET
    assert dependents.after(replace(jobs[1], state=JobState.FAILED)) == [second[0]]
    assert dependents.verdict(second[0]) is Verdict.NEVER
    assert dependents.job(12) == second[2]


def test_one_of_a_name_at_a_time_in_their_order() -> None:
    jobs = Jobs({number: job(number, dependency="singleton" if number > 1 else "") for number in (1, 2, 3)})
    dependents = Dependents(jobs)
    assert [dependents.verdict(jobs[number]) for number in (1, 2, 3)] == [Verdict.MET, Verdict.OPEN, Verdict.OPEN]
    # The one before it is cancelled while it waits: the first one still runs.
    jobs[2] = replace(jobs[2], state=JobState.CANCELLED)
    dependents.verdict(jobs[2])
    assert dependents.after(jobs[2]) == [jobs[3]]
    assert dependents.verdict(jobs[3]) is Verdict.OPEN
    jobs[1] = replace(jobs[1], state=JobState.FAILED)
    assert dependents.after(jobs[1]) == [jobs[3]]
    assert dependents.verdict(jobs[3]) is Verdict.MET


def test_a_thousand_that_wait_for_a_thousand_ask_once() -> None:
    """Nobody's wait is worked out by looking at all the others again."""
    asked = 0

    class Counted(Jobs):
        def elements(self, array_id: int, index: int | None = None) -> list[Job]:
            nonlocal asked
            asked += 1
            return super().elements(array_id, index)

    text = "0-999"
    jobs = Counted({number: job(number, element=member(number - 1, text=text)) for number in range(1, 1001)})
    dependents = Dependents(jobs)
    waiting = [job(2000 + index, dependency="afterok:1_*", element=member(index, 2000, text)) for index in range(1000)]
    assert {dependents.verdict(one) for one in waiting} == {Verdict.OPEN}
    freed: list[Job] = []
    for number in jobs:
        assert not freed
        jobs[number] = replace(jobs[number], state=JobState.COMPLETED)
        freed += dependents.after(jobs[number])
    assert freed == waiting
    assert {dependents.verdict(one) for one in waiting} == {Verdict.MET}
    # Also for those who come when all is over.
    assert {dependents.verdict(replace(one, id=one.id + 2000)) for one in waiting} == {Verdict.MET}
    assert asked == 1
