"""How an option is declared: the kind of its value, and what it is called where people say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

_OPTION = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the values of an option are like."""

    #: Type of the value as JSON and the command line have it: `int`, `str`, `bool`, `list` (of texts) or `dict` (of texts).
    plain: type
    #: From the option's name and such a value to what the lab works with. Raises `Invalid`, which names the option.
    read: Callable[[str, Any], Any]
    #: What the help of the command line calls it.
    metavar: str = ""
    #: The only values; empty where others are possible. The API refuses others by itself if they are `closed`.
    choices: tuple[str, ...] = ()
    closed: bool = False
    #: Of a number: the least and the largest.
    least: int | None = None
    most: int | None = None
    #: Of a number: what true stands for; None where it is not understood.
    truth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. It is called like the field that it is declared for, in requests, in files and for the client."""

    kind: Kind
    #: What it is, in a sentence: the help of the command line, the API's document and the schema have it.
    help: str
    #: On the command line; empty: it cannot be given there.
    flags: tuple[str, ...] = ()
    #: What the help of the command line calls its value, where that is not what its kind says.
    metavar: str = ""
    #: True for a flag that says no.
    negated: bool = False
    #: Another name of the same in requests and files.
    synonym: str = ""
    #: True where requests, and files of tasks (the section ``carrel`` of an MLproject), may have it.
    in_requests: bool = True
    in_files: bool = True
    #: Name in MLflow's backend config, which is Slurm's own word, where its values mean the same as here.
    in_config: str = ""


def option(default: Any = None, *, default_factory: Callable[[], Any] | None = None, **declared: Any) -> Any:
    """Return the field of a dataclass that is declared as an `Option`. Without a default it is None: nothing is said."""
    metadata = {_OPTION: Option(**declared)}
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@cache
def options_of(declaration: type) -> Mapping[str, Option]:
    """Return the options of a dataclass by name, in their order: its fields that are declared with `option`."""
    return {field.name: field.metadata[_OPTION] for field in fields(declaration) if _OPTION in field.metadata}
