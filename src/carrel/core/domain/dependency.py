"""Jobs that start only when others have started or ended, in the words of sbatch(1), ``--dependency``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum

from carrel.core.domain.array import ArrayElement
from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import Job, JobState


class After(StrEnum):
    """What has to have happened to a job."""

    #: It has started, or has ended without that.
    STARTED = "after"
    ENDED = "afterany"
    #: It ended with exit code 0.
    WELL = "afterok"
    NOT_WELL = "afternotok"
    #: Of an array: the element with the same index ended with exit code 0.
    CORRESPONDING = "aftercorr"
    #: All earlier jobs of the same name and owner have ended.
    SINGLETON = "singleton"


class Verdict(Enum):
    """Whether a condition holds."""

    MET = "met"
    OPEN = "open"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One job, element or array, and what has to have happened to it."""

    after: After
    #: 0 for `After.SINGLETON`, which names none.
    job_id: int = 0
    #: Set when `job_id` is an array's and one element of it is meant.
    element: int | None = None
    #: True when `job_id` is an array's and all its elements are meant.
    whole: bool = False

    def __str__(self) -> str:
        if self.after is After.SINGLETON:
            return self.after.value
        part = "_*" if self.whole else "" if self.element is None else f"_{self.element}"
        return f"{self.after}:{self.job_id}{part}"

    def happened(self, job: Job) -> bool:
        """True when what is waited for has happened to `job`, well or not."""
        return job.state.ended or (self.after is After.STARTED and job.started_at is not None)

    def verdict(self, jobs: Iterable[Job]) -> Verdict:
        """Return whether the condition holds now that the jobs that it names are as given; none at all are never enough.

        Of an array, all have to have ended well for `afterok`, and at least one otherwise for `afternotok`.
        """
        found = tuple(jobs)
        if not found:
            return Verdict.NEVER
        bad = any(job.state.ended and job.state is not JobState.COMPLETED for job in found)
        return self.decide(all_happened=all(self.happened(job) for job in found), bad=bad)

    def decide(self, *, all_happened: bool, bad: bool) -> Verdict:
        """Return the verdict from whether it has happened to all, and whether one of them has ended in another way than well."""
        if self.after in (After.WELL, After.CORRESPONDING) and bad:
            return Verdict.NEVER
        if not all_happened:
            return Verdict.OPEN
        return Verdict.NEVER if self.after is After.NOT_WELL and not bad else Verdict.MET


_WORDS = {
    After.STARTED: "started",
    After.ENDED: "ended",
    After.WELL: "ended with exit code 0",
    After.NOT_WELL: "ended in another way than well",
    After.CORRESPONDING: "ended with exit code 0",
}
_PART = re.compile(r"(?P<after>[a-z]+)(?P<jobs>(?::[0-9]{1,18}(?:_(?:[0-9]{1,9}|\*))?)+)")
_EXAMPLE = "afterok:12:13_4,afterany:14"


def read_dependency(text: str) -> tuple[Condition, ...]:
    """Return the conditions in a text such as "afterok:12:13_4,afterany:14", all of which have to hold. Raises `Invalid`.

    "12_4" is an element of array 12, and "12_*" all of them. Whether "12" is a job or an array, the text does not say.
    """
    found: list[Condition] = []
    for part in (part.strip() for part in text.split(",")):
        if part == After.SINGLETON:
            found.append(Condition(after=After.SINGLETON))
            continue
        match = _PART.fullmatch(part)
        if match is None or match["after"] not in {after.value for after in After} - {After.SINGLETON}:
            raise Invalid(
                f'dependency is "{text}".',
                remedy=f'Write it like "{_EXAMPLE}", with numbers of the lab. There are: {", ".join(After)}.',
            )
        found += [_condition(After(match["after"]), number) for number in match["jobs"][1:].split(":")]
    return tuple(dict.fromkeys(found))


def _condition(after: After, number: str) -> Condition:
    job, _, element = number.partition("_")
    if after is After.CORRESPONDING and element not in ("", "*"):
        raise Invalid(
            f"{after}:{number} names one element.",
            remedy=f"Write {after}:{job} for the one of the same index, or afterok:{number}.",
        )
    whole = element == "*" and after is not After.CORRESPONDING
    return Condition(after=after, job_id=int(job), element=int(element) if element not in ("", "*") else None, whole=whole)


def corresponding(condition: Condition, element: ArrayElement | None) -> Condition:
    """Return what `aftercorr` means for an element of an array: a condition on the other element. Others stay as they are."""
    if condition.after is not After.CORRESPONDING or element is None:  # a job that is none was refused when it was submitted
        return condition
    return Condition(after=After.WELL, job_id=condition.job_id, element=element.index)


def write_dependency(conditions: Iterable[Condition]) -> str:
    """Return a text that `read_dependency` reads as these."""
    return ",".join(map(str, conditions))


def describe_dependency(conditions: tuple[Condition, ...]) -> str:
    """Return one sentence: "It starts when job 12 has ended with exit code 0 and all elements of array 14 have ended."."""
    return f"It starts when {' and '.join(map(_describe, conditions))}."


def _describe(condition: Condition) -> str:
    if condition.after is After.SINGLETON:
        return "all earlier jobs of its name and owner have ended"
    words, number = _WORDS[condition.after], condition.job_id
    if condition.whole:
        if condition.after is After.NOT_WELL:
            return f"all elements of array {number} have ended and not all of them well"
        return f"all elements of array {number} have {words}"
    if condition.after is After.CORRESPONDING:
        return f"the element of the same index of array {number} has {words}"
    return f"job {number}{'' if condition.element is None else f'_{condition.element}'} has {words}"
