"""The chain of the audit log: each line has a number, the digest of the line before it, and its own.

A digest is SHA-256 over the line's JSON without it: keys in order, no spaces. So a line that was changed, removed, added or put
elsewhere is seen by a reader who knows the line after it, and any change by a reader who knows the last digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

#: What comes before the first line.
NOTHING = "0" * 64
#: The action of a line that says that the oldest file was removed, by the lab's own rule.
REMOVED = "remove old audit"


class ChainBroken(ValueError):
    """A line is not as the log has written it; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What came of looking at lines."""

    #: How many there are, and the numbers of the first and the last; 0 for none.
    lines: int = 0
    first: int = 0
    last: int = 0
    #: Digest of the last.
    digest: str = NOTHING
    #: What does not fit, and where; "" for nothing.
    trouble: str = ""


def line_of(entry: Mapping[str, Any], *, seq: int, before: str) -> tuple[str, str]:
    """Return the line of an entry, without its end, and its digest."""
    whole = {**entry, "seq": seq, "before": before}
    digest = _digest(whole)
    return json.dumps({**whole, "digest": digest}, sort_keys=True, separators=(",", ":")), digest


def entry_of(line: str | bytes) -> dict[str, Any]:
    """Return what a line says, having looked at its digest. Raises `ChainBroken`."""
    try:
        entry = json.loads(line)
        digest, seq = entry["digest"], entry["seq"]
        _removed(entry)
        whole = isinstance(seq, int) and isinstance(entry["before"], str)
        right = whole and digest == _digest({key: value for key, value in entry.items() if key != "digest"})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ChainBroken("is not a line of the log") from error
    if not right:
        raise ChainBroken("was changed: its digest is another one")
    return dict(entry)


def check_lines(lines: Iterable[str | bytes]) -> Checked:
    """Look at lines from the oldest that is kept to the newest; stop at the first that does not fit."""
    found = Checked()
    start = NOTHING
    removed: tuple[int, str] | None = None
    for line in lines:
        try:
            entry = entry_of(line)
        except ChainBroken as error:
            where = f"after number {found.last}" if found.lines else "at the beginning"
            return replace(found, trouble=f"The line {where} {error}.")
        seq, before = int(entry["seq"]), str(entry["before"])
        if not found.lines:
            found = replace(found, first=seq)
            start = before
        elif seq != found.last + 1:
            return replace(found, trouble=f"Number {found.last} is followed by number {seq}: lines between them are missing.")
        elif before != found.digest:
            return replace(found, trouble=f"Number {seq} does not follow this number {found.last}: one of them was put here.")
        removed = _removed(entry) or removed
        found = replace(found, lines=found.lines + 1, last=seq, digest=str(entry["digest"]))
    if found.lines and (found.first, start) != (1, NOTHING) and removed != (found.first - 1, start):
        return replace(found, trouble=f"Lines before number {found.first} are missing, and the log does not say that they went.")
    return found


def _removed(entry: Mapping[str, Any]) -> tuple[int, str] | None:
    """Number and digest of the last line that went, where the line says that some did."""
    if entry.get("action") != REMOVED:
        return None
    return int(entry["removed"]["last"]), str(entry["removed"]["digest"])


def _digest(entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
