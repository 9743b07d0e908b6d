"""Text files line by line, and numbers in them: anything that cannot be read is an `Invalid` with file, line, value and
remedy."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Cluster, Trace, TraceJob

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Line:
    """Where a value was read, to say so when it is no good."""

    path: Path
    #: From 1.
    number: int

    def wrong(self, fact: str, remedy: str) -> Invalid:
        """Return the error that says what is wrong here."""
        return Invalid(f"{self.path}, line {self.number}: {fact}", remedy=remedy)

    def number_of(self, name: str, text: str) -> float:
        """Return the finite number that stands in the column `name`."""
        try:
            # Python takes 1_000 for a number; no trace does.
            value = math.nan if "_" in text else float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.wrong(f"{name} is {text!r}.", "Write a number.")
        return value

    def positive(self, name: str, text: str) -> float:
        """Return the number, which may be 0 and not less."""
        value = self.number_of(name, text)
        if value < 0:
            raise self.wrong(f"{name} is {text!r}.", "Write 0 or more.")
        return value

    def whole(self, name: str, text: str, *, least: int = 0) -> int:
        """Return the whole number, `least` or more."""
        value = self.number_of(name, text)
        if value != int(value) or value < least:
            raise self.wrong(f"{name} is {text!r}.", f"Write a whole number, {least} or more.")
        return int(value)


def lines_of(path: Path) -> Generator[tuple[Line, str], None, None]:
    """Yield the lines of a text file, gzip'ed or not, without their ends; blank ones are left out.

    Bytes that are not UTF-8 stay visible as replacement characters: harmless in a comment, an error in a number.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace").strip()
                if text:
                    yield Line(path, number), text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Invalid(f"{path} is a broken gzip file: {error}.", remedy="Fetch it again.") from None
    except OSError as error:
        fact = f"{path} cannot be read: {error.strerror or error}."
        raise Invalid(fact, remedy="Name a trace file that you may read.") from None


def first_line(path: Path) -> str:
    """Return the first line that is not blank; empty when there is none."""
    with closing(lines_of(path)) as lines:
        return next((text for _, text in lines), "")


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[tuple[Line, Mapping[str, str]]]:
    """Yield the rows of a comma-separated file by the names in its header, which must have all of `columns`; no quoting."""
    header: list[str] | None = None
    for line, text in lines_of(path):
        values = [value.strip() for value in text.split(",")]
        if header is None:
            header = values
            missing = [name for name in columns if name not in header]
            if missing:
                raise line.wrong(f"the header {text!r} has no {', '.join(missing)}.", f"It needs {', '.join(columns)}.")
        elif len(values) != len(header):
            raise line.wrong(f"{text!r} has {len(values)} values.", f"Write {len(header)}, as in the header.")
        else:
            yield line, dict(zip(header, values, strict=True))


def trace_of(
    path: Path, jobs: Sequence[tuple[Line, TraceJob]], *, cluster: Cluster | None = None, notes: Sequence[str] = ()
) -> Trace:
    """Make a trace of the jobs of a file, in the order of submission. There must be some, each with its own number."""
    if not jobs:
        raise Invalid(f"{path} has no jobs.", remedy="Name a file with at least one.")
    refuse_twice("job", ((line, job.id) for line, job in jobs))
    in_order = sorted([job for _, job in jobs], key=lambda job: job.submitted)
    if in_order != [job for _, job in jobs]:
        notes = [*notes, "The jobs of the file were not in the order of submission; here they are."]
    return Trace(name=path.name, jobs=in_order, cluster=cluster, notes=tuple(notes))


def refuse_twice(noun: str, numbers: Iterable[tuple[Line, int]]) -> None:
    """Raise `Invalid` where one number stands for two jobs, or cells."""
    seen: dict[int, Line] = {}
    for line, number in numbers:
        if number in seen:
            fact = f"there is a {noun} {number} again; the first is on line {seen[number].number}."
            raise line.wrong(fact, f"Give each {noun} a number of its own.")
        seen[number] = line
