"""A command line between two: with some of the values that the other one has. Quotes and spaces stay as they were."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from difflib import SequenceMatcher

#: Words of both command lines up to which they are aligned; longer ones are the one or the other.
_MOST_WORDS = 2000
#: A word as a shell takes it, with its quotes; or the spaces between two.
_WORD = re.compile(r"""\s+|(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+|\S""", re.DOTALL)


def mix_commands(
    first: str, second: str, values: Mapping[str, tuple[str, str]], chosen: Collection[str], *, rest: bool
) -> tuple[str, bool]:
    """Return `first` with the values of `second` for the parameters in `chosen`, and everything else of `second` if `rest`.

    `values` are those that differ, by parameter, of both. The second part of the answer is True when something differs that no
    parameter explains.
    """
    if first == second:
        return first, False
    mine, theirs = _WORD.findall(first), _WORD.findall(second)
    if max(len(mine), len(theirs)) > _MOST_WORDS:
        return (second if rest else first), True
    told: list[str] = []
    unexplained, used = False, set[str]()
    for old, new in _segments(mine, theirs, values):
        if old == new:
            told.append(old)
            continue
        before = "".join(told[-4:])
        names = _explaining(old, new, before, values, used)
        used |= set(names)
        if names:
            told.append(_replaced(old, {name: values[name] for name in names if name in chosen}))
        else:
            unexplained = True
            told.append(new if rest else old)
    return "".join(told), unexplained


def _segments(mine: list[str], theirs: list[str], values: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    pairs = list(zip(mine, theirs, strict=False))
    if len(mine) == len(theirs) and all(old == new or _explaining(old, new, "", values, ()) for old, new in pairs):
        yield from pairs  # also where two parameters have each other's values
        return
    for _, start, end, other_start, other_end in SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
        words, others = mine[start:end], theirs[other_start:other_end]
        shorter = min(len(words), len(others))
        if len(words) != len(others) and _explaining("".join(words), "".join(others), "", values, ()):
            shorter = 0  # a value of several words
        yield from zip(words[:shorter], others[:shorter], strict=True)
        if len(words) > shorter or len(others) > shorter:
            yield "".join(words[shorter:]), "".join(others[shorter:])


def _explaining(old: str, new: str, before: str, values: Mapping[str, tuple[str, str]], used: Collection[str]) -> tuple[str, ...]:
    """The parameters whose values make `new` of `old`; () where they do not."""
    alone = [name for name, pair in values.items() if _replaced(old, {name: pair}) == new]
    if alone:
        named = [name for name in alone if name in old or name in before or name.replace("_", "-") in before + old]
        fresh = [name for name in named or alone if name not in used]
        return ((fresh or named or alone)[0],)
    inside = {name: pair for name, pair in values.items() if shlex.quote(pair[0]) in old or pair[0] in old}
    return tuple(inside) if inside and _replaced(old, inside) == new else ()


def _replaced(text: str, values: Mapping[str, tuple[str, str]]) -> str:
    for old, new in values.values():
        quoted = shlex.quote(old)
        if quoted in text:
            text = text.replace(quoted, shlex.quote(new), 1)
        elif old and old in text:
            text = text.replace(old, new, 1)
    return text
