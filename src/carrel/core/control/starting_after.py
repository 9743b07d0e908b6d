"""What a submission says that it starts after: checked when it comes in, and written down so that nothing is left to guess."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from carrel.core.control.dependents import DependencyLookup
from carrel.core.domain.dependency import After, Condition, Verdict, read_dependency, write_dependency
from carrel.core.domain.errors import Impossible, Invalid, NotFound
from carrel.core.domain.job import Job


def settle_dependency(text: str, indices: Sequence[int], jobs: DependencyLookup, may_see: Callable[[Job], bool]) -> str:
    """Return the dependency with each array that it names written as such ("afterok:12_*").

    `indices` are those of the array that waits, none for a job that is no array. Raises `Invalid`, `NotFound` for what is not
    there or not to be seen, and `Impossible` for what can never happen any more.
    """
    return write_dependency(_settle(one, indices, jobs, may_see) for one in read_dependency(text)) if text else ""


def _settle(condition: Condition, indices: Sequence[int], jobs: DependencyLookup, may_see: Callable[[Job], bool]) -> Condition:
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
    if condition.verdict(found) is Verdict.NEVER:
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
