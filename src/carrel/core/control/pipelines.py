"""Pipelines, read from the jobs of their steps; and of other jobs, those that they belong together with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from carrel.core.control.ports import JobFilter, JobStore
from carrel.core.domain.dependency import After, Condition, read_dependency
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.task import TaskSpec

#: Steps of one pipeline that are shown.
MOST_STEPS = 500
#: Jobs around one that is no step.
MOST_RELATED = 30
#: An input that another job made, and one that lies in a run.
_MADE_BY = re.compile(r"job:([0-9]{1,18})(?:/|$)")
_IN_RUN = re.compile(r"(?:runs:/{1,3}|mlflow-artifacts:\S*/)([0-9a-f]{32})(?:/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatus:
    """One step of a pipeline, or one of several related jobs, as it is now."""

    #: What tells it from the others: a step's name, a job's number.
    key: str
    name: str
    job: Job
    #: True when its job is of an earlier time, and its result was taken again.
    cached: bool
    #: Keys of those that it waits for, or whose outputs it takes.
    after: tuple[str, ...] = ()
    #: Key of the job that submitted it, when it is not after another one.
    parent: str | None = None


def read_pipeline(ran: Mapping[int, Job], tasks: Iterable[TaskSpec | None], get: Callable[[int], Job | None]) -> list[StepStatus]:
    """Return the steps: those that were run for it (`ran`, with their `tasks` in the order of submission), and those before them
    whose result was taken again, of which `get` has the jobs."""
    numbers: dict[str, int] = {}
    for number, task in zip(sorted(ran), tasks, strict=True):
        if task is not None and task.step is not None:
            numbers |= {name: job_id for name, job_id in task.step.jobs.items() if name not in numbers}
            numbers.setdefault(task.step.name, number)
    names = {number: name for name, number in numbers.items()}
    found = []
    for name, number in numbers.items():
        job = ran.get(number) or get(number)
        if job is not None:
            after = tuple(names[one.job_id] for one in _waits(job) if one.job_id in names)
            found.append(StepStatus(key=name, name=name, job=job, cached=number not in ran, after=after))
    return found


def pipeline_of(job: Job, jobs: JobStore) -> list[StepStatus]:
    """Return the steps of the job's pipeline; of a job that is no step the related jobs, or nothing when there are none."""
    if not job.pipeline:
        return related_jobs(job, jobs)
    which = JobFilter(owner=job.owner, pipeline=job.pipeline)
    ran = {one.id: one for one in jobs.list(which, before=None, limit=MOST_STEPS)}
    return read_pipeline(ran, (jobs.task(number) for number in sorted(ran)), jobs.get)


def related_jobs(job: Job, jobs: JobStore) -> list[StepStatus]:
    """Return the job with its parent, with what either of them submitted, and with all that these wait for or take outputs of.

    The newest `MOST_RELATED` of them; nothing when the job stands alone.
    """
    found = {job.id: job}
    parent = jobs.get(job.parent) if job.parent is not None else None
    if parent is not None:
        found[parent.id] = parent
    for one in (job, parent):
        if one is not None and len(found) < MOST_RELATED:
            children = jobs.list(JobFilter(parent=one.id), before=None, limit=MOST_RELATED - len(found))
            found |= {child.id: child for child in children}
    needs: dict[int, list[int]] = {}
    entry_points: dict[int, str] = {}
    by_run = {one.run_id: one.id for one in found.values() if one.run_id is not None}
    waiting = list(found)
    while waiting:
        number = waiting.pop()
        task = jobs.task(number)
        entry_points[number] = task.entry_point if task is not None else ""
        needs[number] = _needs(found[number], task, by_run)
        for other in needs[number]:
            earlier = jobs.get(other) if other not in found and len(found) < MOST_RELATED else None
            if earlier is not None:
                found[other] = earlier
                waiting.append(other)
    if len(found) == 1:
        return []
    names, shown = Counter(one.name for one in found.values()), []
    for number, one in sorted(found.items()):
        after = tuple(str(other) for other in needs[number] if other in found)
        parent_key = str(one.parent) if one.parent in found and not after else None
        # Jobs of one project have one name.
        name = entry_points[number] if names[one.name] > 1 and entry_points[number] not in ("", "main") else one.name
        shown.append(StepStatus(key=str(number), name=name, job=one, cached=False, after=after, parent=parent_key))
    return shown


def starts_after(job: Job, other: int, get: Callable[[int], Job | None]) -> bool:
    """True when the job cannot start before `other` has ended; `get` has the jobs."""
    waiting, seen = [job], {job.id}
    while waiting:
        one = waiting.pop()
        for condition in _waits(one) if one.state is JobState.PENDING else ():
            if condition.after is After.STARTED or condition.job_id in seen:
                continue
            if condition.job_id == other:
                return True
            seen.add(condition.job_id)
            waiting += [found] if (found := get(condition.job_id)) is not None else []
    return False


def _needs(job: Job, task: TaskSpec | None, by_run: Mapping[str, int]) -> list[int]:
    """Numbers of the earlier jobs that it waits for, or of whose outputs or runs (`by_run`) it takes something; each once."""
    inputs = task.all_inputs if task is not None else ()
    numbers = [one.job_id for one in _waits(job)]
    numbers += [by_run[match[1]] for item in inputs if (match := _IN_RUN.match(item.uri)) and match[1] in by_run]
    numbers += [int(match[1]) for item in inputs if (match := _MADE_BY.match(item.uri))]
    return [number for number in dict.fromkeys(numbers) if number < job.id]


def _waits(job: Job) -> list[Condition]:
    return [one for one in read_dependency(job.dependency) if one.after is not After.SINGLETON] if job.dependency else []
