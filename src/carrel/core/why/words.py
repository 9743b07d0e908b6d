"""What was found, in sentences. Each says what was seen, and nothing that was not tried."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.core.why.changes import Change, Part
from carrel.core.why.search import Answer, Found, Variant

#: Changes that are named in a sentence.
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What sentences are made of."""

    first: str
    second: str
    changes: Sequence[Change]
    #: The job of each run.
    jobs: Mapping[Variant, str]
    #: Why a run did not end well, in the lab's words.
    reasons: Mapping[Variant, str]
    #: Differences that cannot be changed, and things that are not known.
    left: Sequence[str]
    #: What differs between a job and its repetition although nothing was changed, if anything.
    unintended: Sequence[str] = ()


def sentences(found: Found, told: Told) -> tuple[str, ...]:
    """Return what was found."""
    return tuple(_sentences(found, told))


def _sentences(found: Found, told: Told) -> Iterator[str]:
    first, second = f"job {told.first}", f"job {told.second}"
    match found.answer:
        case Answer.EXPLAINED:
            one = len(found.changes) == 1
            yield f"The cause is {_and([_with_values(key, told) for key in found.changes])}{'' if one else ', together'}."
            yield f"With {'it' if one else 'them'}, {first} comes to the results of {second}{_twice(found, told)}."
            if not one:
                yield "No single one of them can be left out."
            if found.nothing_else is True:
                yield f"With everything else of {second}, it comes to its own: nothing else matters."
            elif found.nothing_else is False:
                yield f"Something else of {second} changes results as well: without it, the others do not give those of {first}."
        case Answer.IN_PART:
            yield f"A part of the cause is {_and([_with_values(key, told) for key in found.changes])}."
            yield f"With everything that can be changed, {first} does not come to the results of {second}."
            yield from _left(told)
        case Answer.ELSEWHERE:
            if told.changes:
                yield f"With everything that can be changed, {first} still comes to its own results{_by(found, told)}."
            else:
                yield "Nothing differs that can be changed."
            yield from _left(told)
        case Answer.NOT_DETERMINISTIC:
            which, again = _repeated(found, told)
            yield f"{which} does not come to the same results each time{again}. What differs may be chance."
            yield from told.unintended
            yield "Fix what is random first (carrel run --deterministic), or say what does not count (--ignore, --tolerance)."
            yield f"Whether they differ by more than chance: carrel why {told.first} {told.second} --seeds 10"
        case Answer.NOT_REPEATED:
            yield f"{first.capitalize()}, run again twice, comes to the same results, and not to its own{_twice(found, told)}."
            yield from told.unintended
            yield "Something has changed since then that its record does not bring back, or it was chance."
        case Answer.FAILED:
            changed = found.by.changes if found.by is not None else ()
            what = "with all changes" if changed else "run again as it was"
            yield f"{first.capitalize()}, {what}, did not end well{_by(found, told)}, so nothing can be said."
            if found.by is not None and found.by in told.reasons:
                yield told.reasons[found.by]


def _repeated(found: Found, told: Told) -> tuple[str, str]:
    by = found.by or Variant()
    which = f"Job {told.second}" if by.second else f"Job {told.first}"
    if by.changes:
        every = by.changes == {change.key for change in told.changes}
        which += " with all changes" if every else f" with {_and(names_of(by.changes, told.changes))}"
    return which, _by(found, told)


def _by(found: Found, told: Told) -> str:
    job = told.jobs.get(found.by) if found.by is not None else None
    return "" if job is None else f" (job {job})"


def _twice(found: Found, told: Told) -> str:
    """The run by which it is known, and its repetitions."""
    by = found.by or Variant()
    jobs = [told.jobs[one] for number in range(3) if (one := replace(by, repetition=number)) in told.jobs]
    return f" (jobs {_and(jobs)})" if len(jobs) > 1 else _by(found, told)


def _left(told: Told) -> Iterator[str]:
    if told.left:
        more = f" and {len(told.left) - _NAMED} more" if len(told.left) > _NAMED else ""
        yield f"Left are: {'; '.join(told.left[:_NAMED])}{more}."
    else:
        yield "Left is what no record has: what the program reads or does by itself."


def names_of(keys: Collection[str], changes: Sequence[Change]) -> list[str]:
    """The changes and parts, in words, in their order."""
    return [one.what for one in _all(changes) if one.key in keys]


def _all(changes: Sequence[Change]) -> Iterator[Change | Part]:
    for change in changes:
        yield change
        yield from change.parts


def _with_values(key: str, told: Told) -> str:
    one = next(one for one in _all(told.changes) if one.key == key)
    if one.before == one.after:
        return one.what
    return f"{one.what} ({_short(one.before)} in job {told.first}, {_short(one.after)} in job {told.second})"


def _short(text: str) -> str:
    text = text[:19] + text[71:] if text.startswith("sha256:") else text  # with its right to be executed, if it has that
    return text if len(text) <= 40 else f"{text[:39]}…"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
