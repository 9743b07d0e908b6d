"""The kinds of values that options have, and how they are read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from carrel.core.domain.array import read_array
from carrel.core.domain.errors import Invalid
from carrel.core.domain.launcher import Launcher
from carrel.core.domain.network import Network, read_network
from carrel.core.domain.units import parse_duration, parse_size
from carrel.core.domain.visible import Visible
from carrel.core.submission.option import Kind

if TYPE_CHECKING:
    from carrel.core.domain.task import EnvironmentRecipe

#: How often a task goes on that says only that it does.
REQUEUES = 20
#: The order of samples that is recorded.
RECORD = "record"
#: The most that `retries` and `requeue` can be.
MOST_TIMES = 100
#: The longest name of a job, an account, an experiment.
_LONGEST = 255
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Bytes of an argument, or of a variable with its name, that Linux passes to a program (MAX_ARG_STRLEN, without the zero byte).
LONGEST_ARGUMENT = 131_071
#: The lab's own variables; a task that sets one would look like another one.
_RESERVED = "CARREL_"


def number(*, least: int = 0, most: int | None = None, truth: int | None = None, metavar: str = "N") -> Kind:
    """A whole number within bounds."""

    def read(name: str, value: int) -> int:
        if value < least or (most is not None and value > most):
            remedy = (
                f"Ask for {least} to {most}."
                if most is not None
                else "A job needs at least 1."
                if least
                else "Ask for 0 or more."
            )
            raise Invalid(f"{name} is {value}.", remedy=remedy)
        return value

    return Kind(plain=int, read=read, metavar=metavar, least=least, most=most, truth=truth)


def _measure(parse: Callable[[str], int]) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        try:
            return parse(text)
        except Invalid as error:
            raise Invalid(f"{name}: {error.message}", remedy=error.remedy) from None

    return read


def _printable(name: str, text: str) -> str:
    if not text.strip() or len(text) > _LONGEST or not text.isprintable():
        raise Invalid(f'The {name} "{text[:40]}" cannot be used.', remedy=f"Use 1 to {_LONGEST} printable characters.")
    return text


def _as_it_is(_name: str, value: Any) -> Any:
    return value


def _array(_name: str, text: str) -> str:
    read_array(text)
    return text


def _dependency(_name: str, text: str) -> str:
    from carrel.core.domain.dependency import read_dependency  # here and below: most programs never need it

    read_dependency(text)
    return text


def _date(_name: str, text: str) -> str:
    from carrel.core.submission.dates import read_as_of

    read_as_of(text)
    return text


def _order(_name: str, text: str) -> str:
    if text != RECORD and not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
        raise Invalid(
            f'There is no order of samples "{text[:40]}".', remedy=f'Say "{RECORD}", or the number of a job that recorded it.'
        )
    return text


def _compose(_name: str, text: str) -> str:
    from carrel.core.domain.parts import read_compose, write_compose

    return write_compose(read_compose(text))


def _network(name: str, text: str) -> Network:
    return read_network(text, name)


def _image(_name: str, text: str) -> EnvironmentRecipe:
    from carrel.core.submission.image import read_image

    return read_image(text, "the image")


def _visible(_name: str, text: str) -> Visible:
    if text not in tuple(Visible):
        raise Invalid(f'A job cannot be visible to "{text}".', remedy=f"Say {' or '.join(Visible)}.")
    return Visible(text)


def _launcher(_name: str, text: str) -> Launcher:
    return read_launcher(text)


def read_launcher(text: str) -> Launcher:
    """Return the launcher of that name; raise `Invalid` with the nearest one."""
    try:
        return Launcher(text)
    except ValueError:
        from carrel.core.domain.suggest import suggest

        raise Invalid(f'There is no launcher "{text}".', remedy=suggest(text, list(Launcher), what="Launchers")) from None


def _secrets(_name: str, names: Sequence[str]) -> tuple[str, ...]:
    from carrel.core.domain.secret import check_secret_name

    for name in names:
        check_secret_name(name)
    return tuple(dict.fromkeys(names))


def check_variable(name: str) -> str | None:
    """Return what is wrong with the name of an environment variable, or None."""
    if not _VARIABLE.fullmatch(name):
        return "is not a name of a variable: use letters, digits and _"
    if name.startswith(_RESERVED):
        return f"is the lab's own: names that start with {_RESERVED} are set by the lab"
    return None


def _events(_name: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.upper() for name in names)


def _words(_name: str, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(words)


def _variables(_name: str, given: Mapping[str, str]) -> dict[str, str]:
    for name, value in given.items():
        fault = check_variable(name) or ("has a value with a zero byte" if "\0" in value else None)
        if fault is None and (size := len(os.fsencode(f"{name}={value}"))) > LONGEST_ARGUMENT:
            fault = f"has {size:,} bytes with its name; Linux passes {LONGEST_ARGUMENT:,} to a program at most (execve(2))"
        if fault is not None:
            raise Invalid(f'The variable "{name}" {fault}.', remedy="Correct it or leave it out.")
    return dict(given)


COUNT = number(least=1)
TIMES = number(most=MOST_TIMES)
#: What NumPy takes as a seed.
SEED = number(most=2**32 - 1)
GOES_ON = number(most=MOST_TIMES, truth=REQUEUES)
GPUS = number()
SIZE = Kind(plain=str, read=_measure(parse_size), metavar="SIZE")
DURATION = Kind(plain=str, read=_measure(parse_duration), metavar="DURATION")
#: A name that the lab looks up.
WORD = Kind(plain=str, read=_as_it_is)
#: A name that people read.
NAME = Kind(plain=str, read=_printable, metavar="NAME")
TRUTH = Kind(plain=bool, read=_as_it_is)
ARRAY = Kind(plain=str, read=_array, metavar="INDICES")
DEPENDENCY = Kind(plain=str, read=_dependency, metavar="CONDITIONS")
DATE = Kind(plain=str, read=_date, metavar="DATE")
ORDER = Kind(plain=str, read=_order, metavar="ORDER")
PARTS = Kind(plain=str, read=_compose, metavar="PARTS")
NETWORK = Kind(plain=str, read=_network, metavar="WHICH", choices=tuple(str(one) for one in Network))
IMAGE = Kind(plain=str, read=_image, metavar="IMAGE")
LAUNCHER = Kind(plain=str, read=_launcher, metavar="LAUNCHER", choices=tuple(str(one) for one in Launcher))
VISIBLE = Kind(plain=str, read=_visible, metavar="WHO", choices=tuple(str(one) for one in Visible), closed=True)
#: Names that an engine looks up.
WORDS = Kind(plain=list, read=_words, metavar="NAME")
EVENTS = Kind(plain=list, read=_events, metavar="EVENT")
SECRETS = Kind(plain=list, read=_secrets, metavar="NAME")
VARIABLES = Kind(plain=dict, read=_variables, metavar="NAME[=VALUE]")
