"""Likeness of submissions: of their code by fingerprints, of their predictions by what is equal at the same place.

Fingerprints are chosen by winnowing (Schleimer, Wilkerson and Aiken, "Winnowing: Local Algorithms for Document Fingerprinting",
SIGMOD 2003): of each window of hashes of k-grams the least one. Names, numbers and texts are all alike, comments and blanks are
left out. So a copy with other names is found, in any order of its functions.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from keyword import kwlist

from carrel.core.domain.challenge_report import Likeness, LikePair

#: Tokens of a k-gram, and hashes of a window: what two have in common is found from 29 tokens on.
_GRAM, _WINDOW = 20, 10
#: Fewer fingerprints than these say nothing.
_LEAST = 5
#: Lines of the predictions of a submission that are compared.
MOST_LINES = 20_000
#: What is told: from these parts on.
CODE, PREDICTIONS = 0.5, 0.95
#: No alternative can match again what one before it has read in vain, so that a hostile text takes no longer than another.
_TOKEN = re.compile(
    r"#[^\n]*|(?P<text>\"\"\"[\s\S]*?(?:\"\"\"|\Z)|'''[\s\S]*?(?:'''|\Z)|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?)"
    r"|(?P<name>[^\W\d]\w*)|(?P<number>\d[\w.]*)|(?P<sign>\S)"
)
_KEYWORDS = frozenset(kwlist)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A submission, as it is compared."""

    team: str
    number: int
    #: Fingerprints of its code.
    code: frozenset[int]
    #: Hashes of the lines of its predictions, by the path of the file.
    predictions: Mapping[str, Sequence[int]]


def fingerprints(text: str) -> frozenset[int]:
    """Return the fingerprints of a Python program."""
    tokens = [_symbol(found) for found in _TOKEN.finditer(text) if found.lastgroup]
    grams = (" ".join(tokens[at : at + _GRAM]) for at in range(len(tokens) - _GRAM + 1))
    hashes = [zlib.crc32(gram.encode(errors="replace")) for gram in grams]
    return frozenset(min(hashes[at : at + _WINDOW]) for at in range(max(1, len(hashes) - _WINDOW + 1)) if hashes)


def _symbol(found: re.Match[str]) -> str:
    text = found[0]
    return text if found.lastgroup == "sign" or text in _KEYWORDS else f"<{found.lastgroup}>"


def program(path: str, data: bytes) -> str:
    """Return the Python text of a file: of a notebook its code cells, of other files than .py and .ipynb nothing."""
    text = data.decode(errors="replace")
    if path.endswith(".py"):
        return text
    try:
        found = json.loads(text) if path.endswith(".ipynb") else {}
        cells = [cell["source"] for cell in found.get("cells", []) if cell["cell_type"] == "code"]
        return "\n".join("".join(source) for source in cells)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return ""


def lines(data: bytes, most: int = MOST_LINES) -> Sequence[int]:
    """Return hashes of the first lines of a file; where it holds zeros and so is none of lines, of each 64 bytes of it."""
    parts = io.BytesIO(data) if b"\0" not in data else (data[at : at + 64] for at in range(0, len(data), 64))
    return array("L", (zlib.crc32(part.rstrip(b"\r\n")) for part in islice(parts, most)))


def alike(phase: str, found: Sequence[Submitted]) -> Likeness:
    """Compare each with each."""
    pairs = [_pair(one, other) for one, other in combinations(found, 2)]
    told = [pair for pair in pairs if pair.code >= CODE or pair.predictions >= PREDICTIONS]
    told.sort(key=lambda pair: (-max(pair.code, pair.predictions), pair.submissions))
    return Likeness(phase=phase, compared=len(found), code=CODE, predictions=PREDICTIONS, pairs=tuple(told))


def _pair(one: Submitted, other: Submitted) -> LikePair:
    shorter = min(len(one.code), len(other.code))
    code = len(one.code & other.code) / shorter if shorter >= _LEAST else 0.0
    equal = most = 0
    for path in one.predictions.keys() | other.predictions.keys():
        mine, its = one.predictions.get(path, ()), other.predictions.get(path, ())
        equal += sum(a == b for a, b in zip(mine, its, strict=False))
        most += max(len(mine), len(its))
    return LikePair(
        teams=(one.team, other.team),
        submissions=(one.number, other.number),
        code=round(code, 3),
        predictions=round(equal / most, 3) if most else 0.0,
    )
