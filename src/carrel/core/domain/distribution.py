"""What values a parameter of a sweep may have: read from words such as ``loguniform(1e-5, 1e-2)``, and written as them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.errors import Invalid
from carrel.core.domain.suggest import nearest

#: Most values of a categorical one, and characters of what describes one.
MOST_CHOICES, _LONGEST = 1000, 10_000
#: Whole numbers are floating-point numbers where samplers compute with them: up to here they are exact.
_LARGEST_INT = 2**53
_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
#: One that lacks its last bracket.
_BEGUN = re.compile(r"\s*(?:log)?(?:uniform|int|categorical)\s*\([^)]+")
_ARGUMENT = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^,"'()]*?)\s*(?:,|$)""", re.DOTALL)
_INT = re.compile(r"[+-]?[0-9]+")
_STEP = re.compile(r"step\s*=\s*(.*)", re.DOTALL)
_HELP = {
    "uniform": "uniform(0.0, 0.5) or uniform(0, 1, step=0.1)",
    "loguniform": "loguniform(1e-5, 1e-2)",
    "int": "int(1, 8) or int(16, 128, step=16)",
    "logint": "logint(1, 1024)",
    "categorical": "categorical(adam, sgd)",
}

#: A value of a parameter.
ParameterValue = float | int | str


class DistributionKind(StrEnum):
    """The words that people write."""

    UNIFORM = "uniform"
    LOGUNIFORM = "loguniform"
    INT = "int"
    LOGINT = "logint"
    CATEGORICAL = "categorical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What values a parameter may have: numbers from `low` to `high`, both included, or one of `choices`."""

    kind: DistributionKind
    low: float = 0.0
    high: float = 0.0
    #: Between two values; None: every one in between.
    step: float | None = None
    #: As they are passed to the command.
    choices: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """True when its values are whole numbers."""
        return self.kind in (DistributionKind.INT, DistributionKind.LOGINT)

    @property
    def logarithmic(self) -> bool:
        """True when each order of magnitude is as likely as another."""
        return self.kind in (DistributionKind.LOGUNIFORM, DistributionKind.LOGINT)

    @property
    def size(self) -> int | None:
        """How many values there are; None where there is no end of them."""
        if self.kind is DistributionKind.CATEGORICAL:
            return len(self.choices)
        step = self.step or (1 if self.whole else None)
        return None if step is None else int((self.high - self.low) / step + 1e-9) + 1

    def value(self, index: int) -> ParameterValue:
        """One of its values, by its place in their order; only where there is an end of them."""
        if self.kind is DistributionKind.CATEGORICAL:
            return self.choices[index]
        if self.whole:
            return int(self.low) + index * int(self.step or 1)
        assert self.step is not None
        # Without the digits that are only noise: 0.1 + 2 * 0.1 is written 0.3.
        return float(f"{self.low + index * self.step:.12g}")

    def __str__(self) -> str:
        if self.kind is DistributionKind.CATEGORICAL:
            return f"{self.kind}({', '.join(_quoted(choice) for choice in self.choices)})"
        numbers = [self.low, self.high]
        said = ", ".join(str(int(one)) if self.whole else repr(one) for one in numbers)
        step = "" if self.step is None else f", step={int(self.step) if self.whole else repr(self.step)}"
        return f"{self.kind}({said}{step})"


def looks_like_one(text: str) -> bool:
    """True when `text` is written as a distribution is, or nearly: `read_distribution` says what is wrong with others."""
    return any(one.fullmatch(text[:_LONGEST]) for one in (_CALL, _BEGUN))


def read_distribution(name: str, text: str) -> Distribution:
    """Return what `text` says of the parameter `name`. Raises `Invalid` with what is wrong and how it is written."""
    found = _CALL.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None or found[1] not in tuple(DistributionKind):
        meant = nearest(found[1], list(DistributionKind)) if found is not None else None
        hint = f"Did you mean {_HELP[meant]}? " if meant else ""
        raise Invalid(
            f'Parameter {name}: "{text[:60]}" is not a distribution.',
            remedy=f'{hint}Write one of: {"; ".join(_HELP.values())}. One value that looks so: categorical("f(x)").',
        )
    kind = DistributionKind(found[1])
    given = _arguments(name, kind, found[2])
    if kind is DistributionKind.CATEGORICAL:
        return _categorical(name, given)
    return _numbers(name, kind, given)


def _wrong(name: str, kind: DistributionKind, fact: str) -> Invalid:
    return Invalid(f"Parameter {name}: {fact}.", remedy=f"Write it like {_HELP[kind]}.")


def _arguments(name: str, kind: DistributionKind, text: str) -> list[str]:
    given: list[str] = []
    position = 0
    while position < len(text):
        found = _ARGUMENT.match(text, position)
        if found is None or found.end() == position:
            raise _wrong(name, kind, f'"{text[position : position + 40]}" in {kind}(…) cannot be read')
        given.append(found[1])
        position = found.end()
        if position == len(text) and text.endswith(","):
            given.append("")
    if not given or "" in given:
        raise _wrong(name, kind, f"{kind}({text[:40]}) lacks a value")
    return given


def _categorical(name: str, given: list[str]) -> Distribution:
    choices = tuple(_plain(one) for one in given)
    if any("\0" in one for one in choices):
        raise _wrong(name, DistributionKind.CATEGORICAL, "a choice has a zero byte")
    if len(set(choices)) < len(choices):
        twice = next(one for one in choices if choices.count(one) > 1)
        raise _wrong(name, DistributionKind.CATEGORICAL, f'"{twice[:40]}" is there twice')
    if len(choices) > MOST_CHOICES:
        raise _wrong(name, DistributionKind.CATEGORICAL, f"{len(choices)} choices are more than {MOST_CHOICES}")
    return Distribution(kind=DistributionKind.CATEGORICAL, choices=choices)


def _numbers(name: str, kind: DistributionKind, given: list[str]) -> Distribution:
    whole = kind in (DistributionKind.INT, DistributionKind.LOGINT)
    logarithmic = kind in (DistributionKind.LOGUNIFORM, DistributionKind.LOGINT)
    step_text = _STEP.fullmatch(given[-1])
    ends = given[:-1] if step_text else given
    if len(ends) != 2:
        raise _wrong(name, kind, f"{kind} takes a smallest and a largest value, and got {len(ends)}")
    low, high = (_number(name, kind, one, whole=whole) for one in ends)
    if low > high:
        raise _wrong(name, kind, f"the smallest value {ends[0]} is larger than the largest, {ends[1]}")
    if logarithmic and low <= 0:
        raise _wrong(name, kind, f"{kind} begins at {ends[0]}, and needs a value above 0")
    if step_text is None:
        return Distribution(kind=kind, low=low, high=high)
    step = _number(name, kind, step_text[1], whole=whole)
    if logarithmic:
        raise _wrong(name, kind, f"{kind} has no step")
    if step <= 0:
        raise _wrong(name, kind, f"the step {step_text[1]} is not above 0")
    if not math.isfinite((high - low) / step) or (high - low) / step > _LARGEST_INT:
        raise _wrong(name, kind, f"the step {step_text[1]} is too small")
    # Up to the last value that there is.
    steps = int((high - low) / step + 1e-9)
    return Distribution(kind=kind, low=low, high=low + steps * step, step=step)


def _number(name: str, kind: DistributionKind, text: str, *, whole: bool) -> float:
    if whole:
        if not _INT.fullmatch(text) or len(text) > 20 or abs(int(text)) > _LARGEST_INT:
            raise _wrong(name, kind, f'"{text[:40]}" is not a whole number up to {_LARGEST_INT}')
        return float(int(text))
    try:
        found = float(text) if "_" not in text else math.nan
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise _wrong(name, kind, f'"{text[:40]}" is not a number')
    return found


def _plain(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
    return text


def _quoted(text: str) -> str:
    if text and text == text.strip() and not re.search(r"[,\"'()\\]", text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def as_text(value: ParameterValue) -> str:
    """A value as it is passed to the command: the shortest text that is this very value."""
    return value if isinstance(value, str) else repr(value)
