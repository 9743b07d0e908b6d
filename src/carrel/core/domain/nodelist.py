"""Names of several nodes in one word, as Slurm writes them (scontrol(1), "show hostnames"), with `*` for any text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from carrel.core.domain.errors import Invalid

_PART = re.compile(r"(?P<ranges>\[[0-9,-]+\])|(?P<any>\*)|(?P<plain>[^\[\]*\s,]+)")
_RANGE = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?")


def check_nodelist(patterns: Iterable[str]) -> None:
    """Raise `Invalid` for a pattern that is none: each is a name in which ``[01-04,7]`` and ``*`` stand for several."""
    for pattern in patterns:
        _regex(pattern)


def in_nodelist(name: str, patterns: Iterable[str]) -> bool:
    """True when one of `patterns` names the node: "gpu[01-04]" names gpu01 to gpu04, "gpu*" all that begin so."""
    return any(
        found is not None and _within(found.groups(), ranges)
        for pattern in patterns
        for regex, ranges in (_regex(pattern),)
        for found in (regex.fullmatch(name),)
    )


#: First and last number, and how many digits they are written with at least.
_Ranges = tuple[tuple[int, int, int], ...]


def _within(numbers: Iterable[str], ranges: Iterable[_Ranges]) -> bool:
    return all(
        any(first <= int(number) <= last and number == f"{int(number):0{digits}}" for first, last, digits in allowed)
        for number, allowed in zip(numbers, ranges, strict=True)
    )


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> tuple[re.Pattern[str], tuple[_Ranges, ...]]:
    parts, ranges, at = [], [], 0
    while at < len(pattern):
        found = _PART.match(pattern, at)
        if found is None:
            raise _bad(pattern)
        at = found.end()
        if found["ranges"]:
            ranges.append(_numbers(found["ranges"][1:-1], pattern))
            parts.append(r"([0-9]{1,9})")
        else:
            parts.append(".*" if found["any"] else re.escape(found["plain"]))
    if not parts:
        raise _bad(pattern)
    return re.compile("".join(parts), re.DOTALL), tuple(ranges)


def _numbers(text: str, pattern: str) -> _Ranges:
    ranges = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise _bad(pattern)
        first, last = found["first"], found["last"] or found["first"]
        if int(first) > int(last):
            raise _bad(pattern)
        ranges.append((int(first), int(last), len(first)))
    return tuple(ranges)


def _bad(pattern: str) -> Invalid:
    return Invalid(f'"{pattern}" names no nodes.', remedy='Write a name, or several such as "gpu[01-04,07]" or "gpu*".')
