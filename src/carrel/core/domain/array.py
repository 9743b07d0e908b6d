"""Arrays: one task that becomes many jobs, told apart by an index, in the words of sbatch(1), ``--array``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from carrel.core.domain.errors import Invalid

#: How many elements an array has at most: Slurm's own limit where a site says nothing (MaxArraySize, slurm.conf(5)).
MOST_ELEMENTS = 1001
#: The largest index that Slurm can be made to take.
LARGEST_INDEX = 4_000_000

_PART = re.compile(r"(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9})(?::(?P<step>[0-9]{1,9}))?)?")
_LIMIT = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """Which elements an array has, and how many of them may run at once."""

    #: Ascending, each once.
    indices: tuple[int, ...]
    #: The last step that was written; 1 where none was.
    step: int = 1
    #: None: as many as find room.
    at_most: int | None = None


@lru_cache(maxsize=256)
def read_array(text: str) -> ArraySpec:
    """Return what a text such as "0,3,7-15:2%4" says: indices, ranges with a step, and how many at once.

    An index that is named twice is one element, as in Slurm. Raises `Invalid`, also for a limit of 0, which Slurm takes for none.
    """
    listed, percent, limit = text.partition("%")
    if percent and (not _LIMIT.fullmatch(limit.strip()) or int(limit) == 0):
        raise _wrong(text, "After % stands how many of its elements may run at once, 1 or more")
    indices: set[int] = set()
    step = 1
    for part in listed.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise _wrong(text, f'"{part.strip()[:40]}" is neither an index nor a range')
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if last < first:
            raise _wrong(text, f"{first}-{last} ends before it begins")
        if last > LARGEST_INDEX:
            raise _wrong(text, f"The largest index is {LARGEST_INDEX}, and {last} is larger")
        if match["step"] is not None:
            step = int(match["step"])
            if step == 0:
                raise _wrong(text, "A step is 1 or more")
        found = range(first, last + 1, step if match["step"] is not None else 1)
        if len(found) <= MOST_ELEMENTS:
            indices.update(found)
        if max(len(found), len(indices)) > MOST_ELEMENTS:
            raise _wrong(text, f"An array has at most {MOST_ELEMENTS} elements, and these are more")
    return ArraySpec(indices=tuple(sorted(indices)), step=step, at_most=int(limit) if percent else None)


def _wrong(text: str, why: str) -> Invalid:
    return Invalid(f'array is "{text[:100]}". {why}.', remedy='Write it like "0-9", "0,3,7-15:2" or "0-99%4".')


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayElement:
    """What makes a job an element of an array."""

    #: Number of the array: that of its first element's job.
    array_id: int
    index: int
    #: What was asked for, as `read_array` reads it. A job that repeats an element keeps it, so that it finds the same variables.
    array: str

    @property
    def name(self) -> str:
        """ "12_3", as Slurm writes it."""
        return f"{self.array_id}_{self.index}"

    @property
    def at_most(self) -> int | None:
        """How many elements of the array may run at once; None: as many as find room."""
        return read_array(self.array).at_most

    def variables(self) -> dict[str, str]:
        """Return the variables by which a command knows which element it is: those of sbatch(1), and the lab's own."""
        spec = read_array(self.array)
        return {
            "CARREL_ARRAY_JOB_ID": str(self.array_id),
            "CARREL_ARRAY_TASK_ID": str(self.index),
            "SLURM_ARRAY_JOB_ID": str(self.array_id),
            "SLURM_ARRAY_TASK_ID": str(self.index),
            "SLURM_ARRAY_TASK_COUNT": str(len(spec.indices)),
            "SLURM_ARRAY_TASK_MIN": str(spec.indices[0]),
            "SLURM_ARRAY_TASK_MAX": str(spec.indices[-1]),
            "SLURM_ARRAY_TASK_STEP": str(spec.step),
        }
