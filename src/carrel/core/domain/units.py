"""Sizes, durations and counts as people write them.

Sizes are bytes; the suffixes K, M, G, T are binary as in Slurm (``--mem=8G`` is 8 * 1024**3), with an optional ``B`` or
``iB``. Durations are whole seconds: ``90s``, ``30m``, ``2h``, ``1d12h``, or Slurm's ``HH:MM:SS`` and ``D-HH[:MM[:SS]]``.
A bare number is refused in both, because it means bytes to one reader and megabytes to the next; Slurm's own meaning of a
bare number is available to those who translate Slurm's options.
"""

from __future__ import annotations

import re

from carrel.core.domain.errors import Invalid

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4
#: The last moment that a message or a record may name, in Unix seconds: it lies in the year 2255.
LATEST = 9e9

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT])(?:i?B)?", re.IGNORECASE)
_SIZES = {"K": KIB, "M": MIB, "G": GIB, "T": TIB}
_PART = re.compile(r"(\d+(?:\.\d+)?)(w|d|h|min|m|s)")
#: Seconds of the longest duration, and characters of its text: a moment so far away is still in the calendar (it ends in 9999).
_CENTURY, _LONGEST = 100 * 366 * 86400, 100
_PARTS = {"w": 604800, "d": 86400, "h": 3600, "min": 60, "m": 60, "s": 1}
_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>[0-5]?\d))?(?::(?P<third>[0-5]?\d))?")


def parse_size(text: str) -> int:
    """Return the number of bytes that `text` names; raise `Invalid` when it names none."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        remedy = f'Say "{text.strip()}M" or "{text.strip()}G".' if text.strip().isdigit() else 'Write it like "512M" or "8G".'
        raise Invalid(f'"{text}" is not a size.', remedy=remedy)
    size = int(float(match["number"]) * _SIZES[match["unit"].upper()])
    if size <= 0:
        raise Invalid(f'"{text}" is not a size: it must be more than zero.', remedy='Write it like "512M" or "8G".')
    return size


def format_size(size: int) -> str:
    """Return `size` bytes as a short text which `parse_size` reads back, rounded to one decimal."""
    for unit, factor in (("T", TIB), ("G", GIB), ("M", MIB)):
        if size >= factor:
            return f"{size / factor:.1f}".removesuffix(".0") + unit
    return f"{size / KIB:.1f}".removesuffix(".0") + "K"


def parse_duration(text: str) -> int:
    """Return the number of seconds that `text` names; raise `Invalid` when it names none, or more than a hundred years."""
    stripped = text.strip().lower()
    if len(stripped) > _LONGEST:
        raise Invalid(f'"{stripped[:_LONGEST]}…" is not a duration.', remedy='Write it like "30m", "2h" or "1d12h".')
    if stripped.isdigit():
        raise Invalid(
            f'"{text}" is not a duration: it has no unit.', remedy=f'Say "{stripped}m" for minutes or "{stripped}h" for hours.'
        )
    parts = _PART.findall(stripped)
    if parts and "".join(number + unit for number, unit in parts) == stripped:
        seconds = int(sum(float(number) * _PARTS[unit] for number, unit in parts))
    else:
        seconds = _clock_seconds(stripped, text)
    if seconds <= 0:
        raise Invalid(
            f'"{text}" is not a duration: it must be at least one second.', remedy='Write it like "30m", "2h" or "1d12h".'
        )
    if seconds > _CENTURY:  # calendars end in the year 9999
        raise Invalid(f'"{text}" is more than a hundred years.', remedy='Write it like "30m", "2h" or "1d12h".')
    return seconds


def _clock_seconds(stripped: str, text: str) -> int:
    match = _CLOCK.fullmatch(stripped)
    if match is None:
        raise Invalid(f'"{text}" is not a duration.', remedy='Write it like "30m", "2h", "1d12h" or "02:30:00".')
    first, second, third = (int(match[group] or 0) for group in ("first", "second", "third"))
    if match["days"] is not None:  # D-HH[:MM[:SS]]
        return int(match["days"]) * 86400 + first * 3600 + second * 60 + third
    if match["third"] is not None:  # HH:MM:SS
        return first * 3600 + second * 60 + third
    return first * 60 + second  # MM:SS


def format_duration(seconds: float) -> str:
    """Return `seconds` as the two largest units that matter: "45 s", "12 min", "3 h 20 min", "2 d 4 h"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest and minutes < 5 else f"{round(whole / 60)} min"
    if whole < 86400:
        hours, minutes = divmod(round(whole / 60), 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(whole / 3600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def format_count(number: int, noun: str) -> str:
    """Return the number with its noun, which gets an s where it is not one: "1 job", "3 jobs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
