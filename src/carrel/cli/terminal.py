"""What commands write on a terminal: control characters are shown, and not obeyed.

Logs of jobs, their names, messages and files are others' words, and whoever reads them may be an administrator. A terminal
obeys escapes: it sets its title, clears itself, fills the clipboard, or answers as if its user had typed. What goes to a file
or a pipe stays as it is.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from carrel.core.domain.control_characters import visible

#: Colours of our own (`carrel.cli.screen.paint`), and every style of a log (ECMA-48, SGR).
_OWN, _STYLE = r"\x1b\[(?:[0-2]|3[1-6])m", r"\x1b\[[0-9;:]*m"
_PLAIN = "[\n\t\r]"
#: The end of a piece of a log that may be the beginning of a style.
_BEGUN = re.compile(r"\x1b(?:\[[0-9;:]{0,64})?\Z")
_RESET = "\x1b[0m"


@contextmanager
def careful_terminals() -> Iterator[None]:
    """While this is held, standard output and standard error show control characters where they are terminals."""
    before = sys.stdout, sys.stderr
    out, err = (Terminal(stream) if stream is not None and stream.isatty() else stream for stream in before)
    sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
    try:
        yield
    finally:
        if isinstance(out, Terminal):
            out.buffer.finish()
        sys.stdout, sys.stderr = before


class Terminal:
    """A text stream on a terminal. Has all else of the stream below it."""

    def __init__(self, bare: TextIO) -> None:
        #: Without any care, for what moves the cursor on purpose.
        self.bare = bare
        self.buffer = _LogBytes(bare)

    def write(self, text: str) -> int:
        """Write text, with no colours but our own."""
        self.bare.write(visible(text, kept=f"{_PLAIN}|{_OWN}"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bare, name)


class _LogBytes:
    """Bytes of a log, in pieces that end anywhere; its colours are kept, and end with the piece."""

    def __init__(self, bare: TextIO) -> None:
        self._bare = bare
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def write(self, piece: bytes) -> int:
        """Write a piece, but for what its end has only begun."""
        self._put(self._begun + self._decoder.decode(piece))
        return len(piece)

    def finish(self) -> None:
        """Write what was begun and never went on."""
        begun, self._begun = self._begun + self._decoder.decode(b"", final=True), ""
        self._bare.write(visible(begun))

    def _put(self, text: str) -> None:
        begun = _BEGUN.search(text)
        self._begun = begun[0] if begun else ""
        shown = visible(text[: len(text) - len(self._begun)], kept=f"{_PLAIN}|{_STYLE}")
        self._bare.write(shown + _RESET if "\x1b" in shown and not shown.endswith(_RESET) else shown)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bare.buffer, name)
