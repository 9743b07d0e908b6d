"""Numbers in words, for people. What is not known is a dash. Pure."""

from __future__ import annotations

from carrel.core.domain.units import format_duration

#: What stands for a number that there is none of.
NONE = "–"


def duration(seconds: float | None) -> str:
    """ "45 s", "3 h 20 min"."""
    return NONE if seconds is None else format_duration(seconds)


def share(value: float | None) -> str:
    """ "82.3 %"."""
    return NONE if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """ "1,037", "14.2", "0.913": as many decimals as say something."""
    if value is None:
        return NONE
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def hours(value: float | None) -> str:
    """GPU-hours or hours: "51,234", "12.5"; what is less than a hundredth is nothing."""
    return number(None if value is None else round(value, 2))


def exact(value: float | None) -> str:
    """For those who calculate on: "944,350.8"."""
    return NONE if value is None else f"{value:,.1f}".removesuffix(".0")


def count(many: int, noun: str) -> str:
    """ "1 GPU", "3 GPUs"."""
    return f"{many:,} {noun}{'' if many == 1 else 's'}"


def clean(text: str) -> str:
    """`text` on one line, without what a terminal obeys or an encoding refuses: names come from files."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text)


def shortened(text: str, length: int) -> str:
    """`text` with at most `length` characters."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
