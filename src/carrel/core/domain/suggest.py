"""Naming the nearest valid word when one is not understood."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def nearest(word: str, valid: Collection[str]) -> str | None:
    """Return the one of `valid` that `word` was most likely meant to be, or None: not every new word is a mistake."""
    plain = {_plain(option): option for option in valid}
    found = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=0.75)
    return plain[found[0]] if found else None


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")


def suggest(word: str, valid: Collection[str], *, what: str = "Valid") -> str:
    """Return a remedy: the nearest of `valid`, when one is near, and all of them."""
    nearest = difflib.get_close_matches(word.lower(), [option.lower() for option in valid], n=1, cutoff=0.5)
    original = next((option for option in valid if nearest and option.lower() == nearest[0]), None)
    hint = f'Did you mean "{original}"? ' if original else ""
    return f"{hint}{what}: {', '.join(sorted(valid)) or 'none'}."
