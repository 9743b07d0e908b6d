"""Reading a CSV from which a challenge is made, and what is noticed in it."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carrel.core.domain.errors import Invalid
from carrel.core.domain.suggest import suggest

#: Texts that stand for no value.
MISSING = frozenset({"", "na", "nan", "null", "none", "n/a", "?"})
#: Parts of headers under which people are named.
_PEOPLE = re.compile(
    r"(?:^|[^a-z])(?:e-?mail|phone|surname|(?:first|last|full|family|patient)[ _-]?name|name|address|birth\w*|ssn)(?:$|[^a-z])"
)
_MAIL = re.compile(r"[^@\s]+@[^@\s]+\.[a-z]{2,}", re.IGNORECASE)
#: A correlation with the answer from which on a column is it.
_SAME = 0.9999


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under a header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str) -> list[str]:
        """The values of a column."""
        at = self.header.index(name)
        return [row[at] for row in self.rows]


def read_table(data: bytes, file: str) -> Table:
    """Return the table in a CSV whose cells are parted by a comma, a semicolon or a tab. Raises `Invalid` with the line."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Invalid(
            f"{file}, line {line}: this is not UTF-8.", remedy=f"iconv -f latin1 -t utf-8 {file} > utf-8.csv (or -f utf-16)."
        ) from None
    if "\0" in text:
        raise Invalid(f"{file} holds NUL characters: it is no CSV.", remedy="Save it as CSV with the encoding UTF-8.")
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        found = [(reader.line_num, tuple(cell.strip() for cell in row)) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise Invalid(f"{file}, line {reader.line_num}: {error}.", remedy="Look at the quotes.") from None
    if len(found) < 2:
        raise Invalid(f"{file} has no rows below its header.", remedy="Name the CSV with the data.")
    header = found[0][1]
    for name, count in Counter(header).items():
        if count > 1:
            raise Invalid(f'{file}: {count} columns are called "{name}".', remedy="Give each column a name of its own.")
    if "" in header or any(_number(name) is not None for name in header):
        raise Invalid(
            f"{file}: the first line is no header: {', '.join(header)[:80]}.", remedy="Write the names of the columns there."
        )
    for line, row in found[1:]:
        if len(row) != len(header):
            raise Invalid(
                f"{file}, line {line}: {len(row)} cells where the header has {len(header)}.", remedy="Look at the quotes."
            )
    return Table(header=header, rows=tuple(row for _, row in found[1:]))


def without(table: Table, names: Sequence[str]) -> Table:
    """Return the table without some columns. Raises `Invalid` for one that there is not."""
    for name in names:
        if name not in table.header:
            raise Invalid(f'There is no column "{name}".', remedy=suggest(name, table.header, what="Columns"))
    kept = [at for at, name in enumerate(table.header) if name not in names]
    return Table(header=tuple(table.header[at] for at in kept), rows=tuple(tuple(row[at] for at in kept) for row in table.rows))


def numbers(values: Sequence[str]) -> list[float] | None:
    """Return a column as numbers, nan for what is missing; None where a value is no number."""
    found = [math.nan if value.lower() in MISSING else _number(value) for value in values]
    return None if None in found else found  # type: ignore[return-value] # it holds no None


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) and "_" not in text else None


def decimal_comma(values: Sequence[str]) -> bool:
    """Tell whether these are no numbers because they are written with a comma."""
    return numbers(values) is None and numbers([value.replace(",", ".") for value in values]) is not None


def remarks(table: Table, answer: str, group: str) -> list[str]:
    """Return what a person should look at before others see this table: columns that give the answer away, or name people."""
    answers, said = table.column(answer), []
    if again := len(table.rows) - len(set(table.rows)):
        said.append(f"{again} rows are there more than once, and may come into training and test data: keep one of each.")
    for name in table.header:
        if name in (answer, group):
            continue
        values = table.column(name)
        if decimal_comma(values):
            said.append(f'The numbers of "{name}" are written with a comma, and are taken for words: write them with a point.')
        if _same(values, answers):
            said.append(f'The column "{name}" gives the answer away: --drop "{name}" leaves it out.')
        elif _PEOPLE.search(name.lower()) or sum(bool(_MAIL.fullmatch(value)) for value in values) * 2 > len(values):
            said.append(f'The column "{name}" looks as if it names people: --drop "{name}" leaves it out.')
        elif len(set(values)) == len(values) and ((found := numbers(values)) is None or all(map(float.is_integer, found))):
            said.append(f'The column "{name}" names each row, and may tell an order: --drop "{name}" leaves it out.')
    return said


def _same(values: Sequence[str], answers: Sequence[str]) -> bool:
    """Tell whether a column says the answer in other words: value by value, or as a line."""
    pairs: Mapping[str, str] = dict(zip(values, answers, strict=True))
    if len(set(values)) < len(values) / 2 and len(set(pairs.values())) > 1:
        return all(pairs[value] == answer for value, answer in zip(values, answers, strict=True))
    found, wanted = numbers(values), numbers(answers)
    if found is None or wanted is None:
        return list(values) == list(answers)
    known = [(one, other) for one, other in zip(found, wanted, strict=True) if not math.isnan(one)]
    return len(known) > 2 and abs(_correlation(known)) > _SAME


def _correlation(pairs: Sequence[tuple[float, float]]) -> float:
    means = [sum(values) / len(pairs) for values in zip(*pairs, strict=True)]
    away = [(one - means[0], other - means[1]) for one, other in pairs]
    both, first, second = (sum(x * y for x, y in found) for found in (away, [(x, x) for x, _ in away], [(y, y) for _, y in away]))
    return both / math.sqrt(first * second) if first and second else 0.0
