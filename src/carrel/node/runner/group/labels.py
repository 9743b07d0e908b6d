"""Lines of output with their writer in front, as `srun --label` has them."""

from __future__ import annotations

import re

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")
#: Bytes after which a line is let go before it ends.
_LONGEST = 8192


class Labelled:
    """Puts a label in front of each line, and holds back a line that has not ended: others write in between."""

    def __init__(self, label: str) -> None:
        """With an empty label everything passes as it is."""
        self._label = label.encode()
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take what was written; return what can be shown."""
        if not self._label:
            return data
        data = self._held + data
        # A carriage return at the end may be half of a line end.
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
        self._held = data[end:]
        shown = b"".join(self._label + line for line in _LINE.findall(data[:end]))
        if len(self._held) >= _LONGEST:
            shown += self.rest()
        return shown

    def rest(self) -> bytes:
        """Return what was held back, as a line of its own."""
        held, self._held = self._held, b""
        if not held:
            return b""
        return self._label + held + (b"" if held.endswith(b"\r") else b"\n")
