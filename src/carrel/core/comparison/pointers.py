"""Numbers in a JSON document, each by its JSON Pointer (RFC 6901): ``/history/4/loss``."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

#: How deep numbers are looked for.
_DEEPEST = 8


def number_at(document: Any, pointer: str) -> float | None:
    """Return the number to which the pointer leads, or None where there is none, or one that is not finite."""
    try:
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            document = document[_index(name)] if isinstance(document, list) else document[name]
        value = float(document)
    except (ValueError, LookupError, TypeError, OverflowError):
        return None
    return value if isfinite(value) else None


def numbers_in(document: Any, at: str = "") -> Iterator[str]:
    """Pointers to the numbers in the document; of a list only to those in its last item, as of the last epoch."""
    if at.count("/") >= _DEEPEST:
        return
    if isinstance(document, list) and document:
        yield from numbers_in(document[-1], f"{at}/{len(document) - 1}")
    elif isinstance(document, dict):
        for name, value in document.items():
            yield from numbers_in(value, f"{at}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(document, int | float) and not isinstance(document, bool) and at:
        yield at


def _index(text: str) -> int:
    """A place in a list, as RFC 6901 writes it: with digits alone."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)
