"""Which cells: ``3-9,12``."""

from __future__ import annotations

import re
from collections.abc import Collection

from carrel.core.domain.errors import Invalid

_PART = re.compile(r"(?P<first>[0-9]{1,9})?\s*(?P<dash>-)?\s*(?P<last>[0-9]{1,9})?")
_EXAMPLE = 'Write it like "3-9,12", "3-" or "-5"; cells of code count from 1.'


def read_selection(text: str, count: int) -> tuple[int, ...]:
    """Return the numbers that `text` names, sorted; raise `Invalid` for what is no selection, or beyond the `count` cells.

    Parts are separated by commas: a number, a range, or a range that is open at one end.
    """
    chosen: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or not (match["first"] or match["last"]):
            raise Invalid(f'"{part.strip()}" in the selection "{text}" names no cells.', remedy=_EXAMPLE)
        first = int(match["first"] or 1)
        last = int(match["last"]) if match["last"] else count if match["dash"] else first
        if first < 1 or (match["last"] and last < first):
            raise Invalid(f'"{part.strip()}" in the selection "{text}" names no cells.', remedy=_EXAMPLE)
        if first > count or last > count:
            beyond = first if first > count else last
            raise Invalid(
                f'The selection "{text}" names cell {beyond}, and the notebook has {count} with code.',
                remedy="They count from 1, as the numbers beside them after Restart and Run All.",
            )
        chosen.update(range(first, last + 1))
    return tuple(sorted(chosen))


def write_selection(numbers: Collection[int]) -> str:
    """Return the shortest text that `read_selection` reads as `numbers`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
