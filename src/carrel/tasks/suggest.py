"""Naming the nearest valid word when one is not understood."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def suggest(word: str, valid: Collection[str], *, what: str = "Valid") -> str:
    """Return a remedy: the nearest of `valid`, when one is near, and all of them."""
    nearest = difflib.get_close_matches(word.lower(), [option.lower() for option in valid], n=1, cutoff=0.5)
    original = next((option for option in valid if nearest and option.lower() == nearest[0]), None)
    hint = f'Did you mean "{original}"? ' if original else ""
    return f"{hint}{what}: {', '.join(sorted(valid)) or 'none'}."
