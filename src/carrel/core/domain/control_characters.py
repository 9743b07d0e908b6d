"""Control characters in words of others, as signs that can be read: a terminal obeys the characters themselves."""

from __future__ import annotations

import re

#: Of ASCII and of Latin-1 (ISO 6429), and those that turn the direction of text round (UAX #9).
_CONTROL = "[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"


def visible(text: str, *, kept: str = "[\n\t\r]") -> str:
    r"""Return `text` with "^[" for an escape, "^J" for a line end, "\x9b" for what is beyond ASCII; what matches `kept` stays."""
    return re.sub(f"({kept})|{_CONTROL}", lambda found: found[1] or _sign(found[0]), text)


def _sign(char: str) -> str:
    code = ord(char)
    return f"^{chr(code ^ 64)}" if code < 128 else char.encode("unicode_escape").decode()
