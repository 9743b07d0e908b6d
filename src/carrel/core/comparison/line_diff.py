"""Which lines two texts do not share. Bounded: texts come from users, and are compared in the server."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

#: Lines in a text, and edits between two, up to which they are compared.
MOST_LINES, MOST_EDITS = 5000, 250
_CONTEXT = 3

#: A line with " ", "-" or "+" before it.
_Marked = tuple[str, str]


def diff_lines(old: str, new: str) -> tuple[str, ...] | None:
    """Return the hunks of a unified diff, or None where the texts are too long or differ in too much.

    The fewest edits, by E. Myers, "An O(ND) Difference Algorithm and Its Variations" (1986).
    """
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > MOST_LINES:
        return None
    marked = _marked(before, after)
    return None if marked is None else tuple(_hunks(marked))


def counts(hunks: Sequence[str]) -> tuple[int, int]:
    """Return how many lines hunks add, and how many they remove."""
    lines = [line for hunk in hunks for line in hunk.splitlines()[1:]]
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)


@dataclass(frozen=True, slots=True)
class LineChange:
    """Lines beside each other that one text has in the place of those of the other."""

    #: Number of the first of the new lines; where there are none, of the line that follows.
    at: int
    old: tuple[str, ...]
    new: tuple[str, ...]


def line_changes(old: str, new: str) -> tuple[LineChange, ...] | None:
    """Return the changes between two texts, as small as they can be made one without the other; None as in `diff_lines`."""
    pieces = _pieces(old, new)
    if pieces is None:
        return None
    found, at = [], 1
    for mine, theirs in pieces:
        if mine != theirs:
            found.append(LineChange(at, mine, theirs))
        at += len(theirs)
    return tuple(found)


def mix_lines(old: str, new: str, taken: Collection[int]) -> str | None:
    """Return `old` with those of its `line_changes` whose numbers, from 1, are in `taken`; None as in `diff_lines`."""
    pieces = _pieces(old, new)
    if pieces is None:
        return None
    kept: list[str] = []
    number = 0
    for mine, theirs in pieces:
        number += mine != theirs
        kept += theirs if mine != theirs and number in taken else mine
    # A text's last line may have no end, and then stand before another one.
    return "".join([*(line if line.endswith(("\n", "\r")) else f"{line}\n" for line in kept[:-1]), *kept[-1:]])


_Piece = tuple[tuple[str, ...], tuple[str, ...]]


def _pieces(old: str, new: str) -> list[_Piece] | None:
    """Both texts side by side: lines of the one, and what the other has in their place."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    marked = None if max(len(before), len(after)) > MOST_LINES else _marked(before, after)
    if marked is None:
        return None
    found: list[_Piece] = []
    for same, lines in groupby(marked, key=lambda one: one[0] == " "):
        group = list(lines)
        mine = tuple(line for mark, line in group if mark != "+")
        theirs = tuple(line for mark, line in group if mark != "-")
        if same or len(mine) == len(theirs):
            found += [((one,), (other,)) for one, other in zip(mine, theirs, strict=True)]
        else:
            found.append((mine, theirs))
    return found


def _marked(before: list[str], after: list[str]) -> list[_Marked] | None:
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    middle = _edits(before[start : len(before) - end], after[start : len(after) - end])
    if middle is None:
        return None
    head, tail = before[:start], before[len(before) - end :]
    return [(" ", line) for line in head] + middle + [(" ", line) for line in tail]


def _edits(before: list[str], after: list[str]) -> list[_Marked] | None:
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(min(len(before) + len(after), MOST_EDITS) + 1):
        trace.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < len(before) and y < len(after) and before[x] == after[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(before) and y >= len(after):
                return _way_back(trace, before, after)
    return None


def _way_back(trace: list[dict[int, int]], before: list[str], after: list[str]) -> list[_Marked]:
    x, y = len(before), len(after)
    found: list[_Marked] = []
    for edits in range(len(trace) - 1, -1, -1):
        furthest, diagonal = trace[edits], x - y
        down = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
        from_x = furthest[diagonal + 1] if down else furthest[diagonal - 1]
        from_y = from_x - (diagonal + 1 if down else diagonal - 1)
        while x > max(from_x, 0) and y > max(from_y, 0):
            x, y = x - 1, y - 1
            found.append((" ", before[x]))
        if edits:
            found.append(("+", after[from_y]) if down else ("-", before[from_x]))
        x, y = from_x, from_y
    return found[::-1]


def _hunks(marked: list[_Marked]) -> list[str]:
    changed = [index for index, (mark, _) in enumerate(marked) if mark != " "]
    groups: list[list[int]] = []
    for index in changed:
        if groups and index - groups[-1][1] <= 2 * _CONTEXT:
            groups[-1][1] = index
        else:
            groups.append([index, index])
    found, old, new, position = [], 1, 1, 0
    for first, last in groups:
        start, stop = max(0, first - _CONTEXT), min(len(marked), last + _CONTEXT + 1)
        old += sum(mark != "+" for mark, _ in marked[position:start])
        new += sum(mark != "-" for mark, _ in marked[position:start])
        lines = marked[start:stop]
        removed, added = sum(mark != "+" for mark, _ in lines), sum(mark != "-" for mark, _ in lines)
        head = f"@@ -{old if removed else old - 1},{removed} +{new if added else new - 1},{added} @@"
        found.append("\n".join([head, *(mark + line for mark, line in lines)]))
        old, new, position = old + removed, new + added, stop
    return found
