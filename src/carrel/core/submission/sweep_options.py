"""What a sweep may ask for, declared once: the command line, the API, the table ``sweep`` of an MLproject, the schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from carrel.core.domain.distribution import Distribution, read_distribution
from carrel.core.domain.errors import Invalid
from carrel.core.domain.sweep import MOST_PARALLEL, MOST_TRIALS, Direction, Pruner, Sampler
from carrel.core.submission.kinds import NAME, number
from carrel.core.submission.option import Kind, option


def _choice(what: type[Direction] | type[Sampler] | type[Pruner], metavar: str) -> Kind:
    choices = tuple(str(one) for one in what)

    def read(name: str, text: str) -> Any:
        if text not in choices:
            raise Invalid(f'{name} is "{text[:40]}".', remedy=f"Say {' or '.join(choices)}.")
        return what(text)

    return Kind(plain=str, read=read, metavar=metavar, choices=choices, closed=True)


def _distributions(_name: str, given: Mapping[str, str]) -> dict[str, Distribution]:
    return {name: read_distribution(name, text) for name, text in given.items()}


DISTRIBUTIONS = Kind(plain=dict, read=_distributions, metavar="NAME=DISTRIBUTION")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What one source says about a sweep: a request, or the task's own file. None: it says nothing."""

    parameters: Mapping[str, Distribution] | None = option(
        kind=DISTRIBUTIONS, help='What values each parameter may have: "loguniform(1e-5, 1e-2)".'
    )
    trials: int | None = option(
        kind=number(least=1, most=MOST_TRIALS), flags=("--trials",), help="How many trials [default: 20; of a grid all]"
    )
    parallel: int | None = option(
        kind=number(least=1, most=MOST_PARALLEL), flags=("--parallel",), help="How many trials at once, at most [default: 4]"
    )
    metric: str | None = option(kind=NAME, flags=("--metric",), help="The metric that decides which trial is the best.")
    direction: Direction | None = option(
        kind=_choice(Direction, "WHICH"), flags=("--direction",), help="minimize or maximize [default: minimize]"
    )
    sampler: Sampler | None = option(
        kind=_choice(Sampler, "SAMPLER"),
        flags=("--sampler",),
        help="How parameters are chosen: tpe, cmaes, random or grid [default: tpe]",
    )
    pruner: Pruner | None = option(
        kind=_choice(Pruner, "PRUNER"),
        flags=("--pruner",),
        help="Which trials end early: median, halving, hyperband or none [default: none]",
    )
    seed: int | None = option(kind=number(most=2**32 - 1), flags=("--seed",), help="Makes what is chosen repeatable [default: 0]")

    def over(self, other: SweepOptions) -> SweepOptions:
        """Return these, with what they leave open taken from `other`; of parameters, each by its name."""
        said = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        parameters = {**(other.parameters or {}), **(self.parameters or {})}
        return replace(other, **{**said, "parameters": parameters or None})
