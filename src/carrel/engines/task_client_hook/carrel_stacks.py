"""Says where the main thread is when the lab asks (SIGURG): one line for each question. Standard library alone, Python 3.8.

A process that does not handle SIGURG ignores it (signal(7)), so a question ends none. The handler runs between two instructions
of the main thread; one that is in a call that does not return to Python answers later.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

#: The file that answers are added to.
_FILE = os.environ.get("CARREL_STACKS", "")
_DEEPEST, _LONGEST = 60, 300


def answer(_signal: int, frame: FrameType | None) -> None:
    """Add the stack to the file: functions, files and lines, the innermost first."""
    words = [str(os.getpid())]
    while frame is not None and len(words) <= _DEEPEST:
        code = frame.f_code
        parts = (getattr(code, "co_qualname", code.co_name), code.co_filename, str(frame.f_lineno))
        words.append("\x1f".join(part[-_LONGEST:].translate({10: 63, 30: 63, 31: 63}) for part in parts))
        frame = frame.f_back
    try:
        file = os.open(_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(file, ("\x1e".join(words) + "\n").encode(errors="replace"))
        finally:
            os.close(file)
    except OSError:
        pass  # a full disk, or no more descriptors: it is not the program's matter


def listen() -> None:
    """Answer from now on, where the program handles the signal in no other way."""
    try:
        if signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
            signal.signal(signal.SIGURG, answer)
    except ValueError:
        pass  # an interpreter that is embedded, in another thread than its program's first
