"""Times, sizes and states as people read them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from carrel.core.domain.units import GIB, KIB, MIB, TIB, format_duration
from carrel.lab.gateway.events import boundary

#: State -> (what it means, sign, tone). The tone picks the colour; the sign is for those who do not see colours.
STATES: dict[str, tuple[str, str, str]] = {
    "PENDING": ("It waits.", "◷", "wait"),
    "CONFIGURING": ("It has its place, and is being prepared.", "◔", "busy"),
    "RUNNING": ("Its command runs.", "▶", "run"),
    "SUSPENDED": ("It is stopped for a while, and goes on later.", "‖", "wait"),
    "COMPLETED": ("The command ended with exit code 0.", "✓", "good"),
    "FAILED": ("The command ended otherwise, or could not be started.", "✕", "bad"),
    "CANCELLED": ("A user or the lab asked for its end.", "⊘", "off"),
    "TIMEOUT": ("It reached its walltime.", "⧗", "bad"),
    "OUT_OF_MEMORY": ("It used more memory than it asked for.", "✕", "bad"),
    "NODE_FAIL": ("Its node or its runner is gone.", "✕", "bad"),
    "PREEMPTED": ("Another job took its place.", "⊘", "off"),
}
#: The same of machines from parts.
MACHINE_STATES: dict[str, tuple[str, str, str]] = {
    "PENDING": ("It waits for blocks.", "◷", "wait"),
    "CONFIGURING": ("Its blocks are being attached.", "◔", "busy"),
    "RUNNING": ("It is there.", "▶", "run"),
    "COMPLETING": ("Its blocks are given back.", "◔", "busy"),
    "COMPLETED": ("Its time was over.", "✓", "good"),
    "CANCELLED": ("It was given back.", "⊘", "off"),
    "FAILED": ("It could not be made.", "✕", "bad"),
}
#: The same of sweeps and their trials, where that is something else than of jobs.
SWEEP_STATES: dict[str, tuple[str, str, str]] = {
    "RUNNING": ("It goes on.", "▶", "run"),
    "COMPLETED": ("It was carried out to its end.", "✓", "good"),
    "PRUNED": ("It was ended early: it would not have become one of the best.", "✂", "off"),
    "STOPPED": ("Somebody stopped it; it can be resumed.", "‖", "wait"),
    "FAILED": ("It could not be carried out.", "✕", "bad"),
    "CANCELLED": ("Somebody ended it; another takes its place.", "⊘", "off"),
}

# Control sequences of terminals (ECMA-48): CSI … final byte, OSC … BEL or ST, and two-byte escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


def duration(seconds: float | None) -> str:
    """ "3 h 20 min", or a dash."""
    return "–" if seconds is None else format_duration(seconds)


def size(amount: float) -> str:
    """Bytes with their unit: "1.4 GiB"."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if amount >= factor:
            return f"{amount / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{amount:.0f} B"


def written(name: str, value: object) -> str:
    """The value of an option as people write it into a form, exactly."""
    if name in ("memory", "gpu_memory") and isinstance(value, int):
        return f"{value // GIB}G" if value % GIB == 0 else f"{value // MIB}M"
    if name == "time" and isinstance(value, int):
        return next(f"{value // size}{unit}" for size, unit in ((3600, "h"), (60, "m"), (1, "s")) if value % size == 0)
    return str(value)


def sentence(text: str) -> str:
    """`text` with a capital at its beginning and a stop at its end."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if not text or text[-1] in ".!?:…" else ".")


def ago(when: datetime, now: datetime) -> str:
    """ "3 min ago", "in 2 h", or the date when it is more than a week away."""
    seconds = (now - when).total_seconds()
    if abs(seconds) > 7 * 86400:
        return when.astimezone(UTC).strftime("%Y-%m-%d")
    if abs(seconds) < 10:
        return "just now" if seconds >= 0 else "in a moment"
    text = _one_unit(abs(seconds))
    return f"{text} ago" if seconds > 0 else f"in {text}"


def _one_unit(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def exact(when: datetime) -> str:
    """A time to the second, in UTC."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def plain(text: str) -> str:
    """Log text as a terminal would have left it: no control sequences, and of a line that was overwritten the last version."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def log_tail(data: bytes, offset: int) -> tuple[str, int]:
    """The text of a tail of a log that begins at byte `offset`, and the byte at which the text ends.

    It begins at a line, unless it begins at the beginning; a character that is cut at the end is left to what follows.
    """
    end = boundary(data, len(data))
    start = data.find(b"\n", 0, end) + 1 if offset > 0 else 0
    return plain(data[start:end].decode("utf-8", "replace")), offset + end
