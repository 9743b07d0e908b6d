"""Jobs that are not in line yet, because they start after others. Used by the loop's thread; `settle_dependency` in any.

What is waited for is watched once, however many wait for it, and each change of a job touches what watches that job alone: an
array of a thousand that waits for another one is a thousand small steps, and not a million.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from carrel.core.domain.dependency import After, Condition, Verdict, corresponding, read_dependency, write_dependency
from carrel.core.domain.errors import Impossible, Invalid, NotFound
from carrel.core.domain.job import Job, JobState

#: Conditions whose verdict is remembered: it is final, and the elements of an array ask for the same one after another.
_REMEMBERED = 64


class DependencyLookup(Protocol):
    """What is written down about the jobs that others wait for."""

    def get(self, job_id: int) -> Job | None:
        """The job, or None."""

    def elements(self, array_id: int, index: int | None = None) -> Sequence[Job]:
        """The jobs of an array in the order of their indices, or that of one index; none where there is no such array."""

    def namesake(self, job: Job) -> Job | None:
        """The newest other job of that owner and name that has not ended, and came before `job` or holds resources; or None."""


def named(condition: Condition, jobs: DependencyLookup) -> Sequence[Job]:
    """Return the jobs that a condition names by their numbers."""
    if condition.whole or condition.element is not None:
        return jobs.elements(condition.job_id, condition.element)
    job = jobs.get(condition.job_id)
    return () if job is None else (job,)


@dataclass(slots=True)
class _Watch:
    """What is known about a condition that is open."""

    #: Numbers of the jobs to which it has not happened yet.
    open: set[int]
    #: One of the others has not ended well.
    bad: bool
    #: Who waits for it.
    waiting: set[int] = field(default_factory=set)


class Dependents:
    """Keeps jobs back until what they wait for has happened."""

    def __init__(self, jobs: DependencyLookup) -> None:
        self._jobs = jobs
        self._kept: dict[int, Job] = {}
        #: The open conditions of those who are kept; none once all hold.
        self._open: dict[int, set[Condition]] = {}
        self._never: set[int] = set()
        self._watches: dict[Condition, _Watch] = {}
        #: What watches a job, by its number.
        self._by_job: dict[int, set[Condition]] = {}
        self._final: OrderedDict[Condition, Verdict] = OrderedDict()

    def verdict(self, job: Job) -> Verdict:
        """Return whether the job may come into the line; one that may not yet is kept, and found again by `after`.

        Who has been started once has waited long enough.
        """
        if job.state is not JobState.PENDING or not job.dependency or job.attempt:
            self.forget(job.id)
            return Verdict.MET
        if job.id in self._never:
            self.forget(job.id)
            return Verdict.NEVER
        if self._open.get(job.id):
            self._kept[job.id] = job
            return Verdict.OPEN
        # Of those who were kept all conditions hold; only who is the next of a name has to be looked at again.
        conditions = self._conditions(job, only_singleton=job.id in self._kept)
        self.forget(job.id)
        verdicts = {condition: self._look(condition) for condition in conditions}
        found = set(verdicts.values())
        if found <= {Verdict.MET}:
            return Verdict.MET
        self._kept[job.id] = job
        self._open[job.id] = {condition for condition, verdict in verdicts.items() if verdict is Verdict.OPEN}
        for condition in self._open[job.id]:
            self._watches[condition].waiting.add(job.id)
        if Verdict.NEVER in found:
            self.forget(job.id)
            return Verdict.NEVER
        return Verdict.OPEN

    def after(self, job: Job) -> Sequence[Job]:
        """Return those for whom it is decided, now that this job has started or ended: they are to be asked for again."""
        decided: set[int] = set()
        for condition in tuple(self._by_job.get(job.id, ())):
            if condition.happened(job):
                watch = self._watches[condition]
                watch.open.discard(job.id)
                watch.bad = watch.bad or job.state is not JobState.COMPLETED
                self._overlook(job.id, condition)
                if (verdict := condition.decide(all_happened=not watch.open, bad=watch.bad)) is not Verdict.OPEN:
                    decided |= self._close(condition, verdict)
        return [self._kept[job_id] for job_id in sorted(decided)]

    def job(self, job_id: int) -> Job | None:
        """Return a job that is kept, or None."""
        return self._kept.get(job_id)

    def forget(self, job_id: int) -> None:
        """The job is not kept any more."""
        self._kept.pop(job_id, None)
        self._never.discard(job_id)
        for condition in self._open.pop(job_id, ()):
            watch = self._watches.get(condition)
            if watch is not None:
                watch.waiting.discard(job_id)
                if not watch.waiting:
                    self._unwatch(condition)

    # ---- watching

    def _conditions(self, job: Job, *, only_singleton: bool) -> Sequence[Condition]:
        """Return what the job waits for, each naming jobs by their numbers."""
        found = []
        for condition in read_dependency(job.dependency):
            if condition.after is After.SINGLETON:
                if (other := self._jobs.namesake(job)) is not None:
                    found.append(Condition(after=After.ENDED, job_id=other.id))
            elif not only_singleton:
                found.append(corresponding(condition, job.element))
        return found

    def _look(self, condition: Condition) -> Verdict:
        """Return whether a condition holds, and watch it while it is open.

        What happens to the jobs that it names after this look comes as news.
        """
        if condition in self._watches:
            return Verdict.OPEN
        if condition in self._final:
            return self._final[condition]
        jobs = named(condition, self._jobs)
        verdict = condition.verdict(jobs)
        if verdict is Verdict.OPEN:
            waits = {job.id for job in jobs if not condition.happened(job)}
            bad = any(job.id not in waits and job.state is not JobState.COMPLETED for job in jobs)
            self._watches[condition] = _Watch(waits, bad)
            for number in waits:
                self._by_job.setdefault(number, set()).add(condition)
        else:
            self._remember(condition, verdict)
        return verdict

    def _close(self, condition: Condition, verdict: Verdict) -> set[int]:
        """It is known whether the condition holds; return those for whom this was the last thing to know."""
        self._remember(condition, verdict)
        decided = set()
        for job_id in self._unwatch(condition):
            self._open[job_id].discard(condition)
            if verdict is Verdict.NEVER:
                self._never.add(job_id)
            if verdict is Verdict.NEVER or not self._open[job_id]:
                decided.add(job_id)
        return decided

    def _unwatch(self, condition: Condition) -> set[int]:
        watch = self._watches.pop(condition)
        for number in watch.open:
            self._overlook(number, condition)
        return watch.waiting

    def _overlook(self, number: int, condition: Condition) -> None:
        """The condition does not wait for this job any more."""
        watching = self._by_job[number]
        watching.discard(condition)
        if not watching:
            del self._by_job[number]

    def _remember(self, condition: Condition, verdict: Verdict) -> None:
        self._final[condition] = verdict
        if len(self._final) > _REMEMBERED:
            self._final.popitem(last=False)


def settle_dependency(
    text: str, indices: Sequence[int], jobs: DependencyLookup, may_see: Callable[[Job], bool], *, step: bool = False
) -> str:
    """Return the dependency with each array that it names written as such ("afterok:12_*").

    `indices` are those of the array that waits, none for a job that is no array. Raises `Invalid`, `NotFound` for what is not
    there or not to be seen, and `Impossible` for what can never happen any more; not of a `step`, which ends by that as soon as
    it is submitted: one before it may fail before or after that moment.
    """
    return write_dependency(_settle(one, indices, jobs, may_see, step=step) for one in read_dependency(text)) if text else ""


def _settle(
    condition: Condition, indices: Sequence[int], jobs: DependencyLookup, may_see: Callable[[Job], bool], *, step: bool
) -> Condition:
    if condition.after is After.SINGLETON:
        return condition
    number = condition.job_id
    first = jobs.get(number)
    if first is None or not may_see(first):
        raise NotFound(f"There is no job {number}.", remedy="`carrel ps --all` lists your jobs.")
    is_array = first.element is not None and first.element.array_id == number
    if condition.after is After.CORRESPONDING:
        return _settle_corresponding(condition, is_array, indices, jobs)
    if is_array and condition.element is None:
        condition = replace(condition, whole=True)
    found: Sequence[Job] = [first]
    if condition.whole or condition.element is not None:
        found = jobs.elements(number, condition.element) if is_array else ()
    if not found:
        what = f"Array {number} has no element {condition.element}." if is_array else f"Job {number} is not an array."
        raise NotFound(what, remedy=f"`carrel show {number}` says what it is.")
    if condition.verdict(found) is Verdict.NEVER and not step:
        ended = next((job for job in found if condition.verdict((job,)) is Verdict.NEVER), found[0])
        name = ended.element.name if ended.element is not None else str(ended.id)
        raise Impossible(
            f'Job {name} has ended {ended.state}, so what the job waits for ("{condition.after}") can never happen.',
            remedy="Leave it out, or name another job.",
        )
    return condition


def _settle_corresponding(condition: Condition, is_array: bool, indices: Sequence[int], jobs: DependencyLookup) -> Condition:
    number = condition.job_id
    if not is_array:
        raise Invalid(f'"{condition}": job {number} is not an array.', remedy=f"Write afterok:{number}.")
    if not indices:
        raise Invalid(f'"{condition}" is for the elements of an array.', remedy=f"Write afterok:{number}, or ask for an array.")
    there = {job.element.index for job in jobs.elements(number) if job.element is not None}
    missing = next((index for index in indices if index not in there), None)
    if missing is not None:
        raise NotFound(f"Array {number} has no element {missing}.", remedy="Ask for indices that it has, or write afterok.")
    return condition
