"""Numbers of jobs and of elements of arrays, as Slurm writes them. Pure."""

from __future__ import annotations

import re

#: Of a job, of an element, of the elements of an array that wait together, of a part of a heterogeneous job.
_JOB = re.compile(r"([0-9]{1,18})(?:_(?:([0-9]{1,18})|\[([^\]]*)\]))?(?:\+[0-9]{1,9})?")
#: Part of a list of elements: an index, or a range with a step.
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
#: The largest index that Slurm can be made to take.
_LARGEST = 4_000_000


def shown(number: int, task: int | None) -> str:
    """Return the number of a job, or of an element of an array ("12_3"), as Slurm's programs take it."""
    return f"{number}" if task is None else f"{number}_{task}"


def read_numbers(text: str) -> list[tuple[int, int | None]]:
    """Return job and element of "12" and "12_3"; of "12_[4-20%2]", elements that wait together, each.

    Raises `ValueError`, also for a list that was cut short ("..."): an element that is not in it has not gone.
    """
    match = _JOB.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no number of a job")
    number = int(match[1])
    if match[3] is not None:
        return [(number, task) for task in _tasks(match[3])]
    return [(number, None if match[2] is None else int(match[2]))]


def _tasks(text: str) -> list[int]:
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is no list of elements")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not first <= last <= _LARGEST or not step:
            raise ValueError(f"{text!r} is no list of elements")
        found += range(first, last + 1, step)
    return found


def indices_text(indices: list[int]) -> str:
    """Return indices as sbatch takes them ("0-4,7"): a range for those that follow each other, or stand equally far apart."""
    left = sorted(indices)
    parts = []
    while left:
        step = left[1] - left[0] if len(left) > 1 else 1
        size = next((n for n in range(1, len(left)) if left[n] - left[n - 1] != step), len(left))
        if size < 3 and step > 1:
            size = 1
        first, last = left[0], left[size - 1]
        parts.append(f"{first}" if size == 1 else f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}")
        left = left[size:]
    return ",".join(parts)
