"""What an attempt's command needs, once it is ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from carrel.node.runner.variables import Places


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What the command needs, ready."""

    command: str
    #: Where it runs.
    directory: Path
    places: Places
    #: The base variables, with the environment activated.
    activated: Mapping[str, str]
    #: The environment's lock as text, "" without one.
    lock: str
    #: The files of the image that is the environment; None: the machine's own.
    root: Path | None = None
    #: The same where the command is a program of the lab's own, and starts others in the image; None: there is none.
    view: Path | None = None
    #: Values of the owner's secrets by name; in variables and nowhere else.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
