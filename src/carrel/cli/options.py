"""Options and arguments that several commands have, said once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrel.client import Client
    from carrel.wire.v1 import JobView

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.", show_default=False)]
Home = Annotated[
    Path | None,
    typer.Option("--home", metavar="DIR", help="The lab's home directory.  [CARREL_HOME or ~/.local/share/carrel]"),
]


def job_number(text: str) -> int:
    """A job's number, as a person types it."""
    number = text.removeprefix("#")
    if not (number.isascii() and number.isdigit() and len(number) < 19 and int(number)):
        raise typer.BadParameter(f'"{text}" is not the number of a job.')
    return int(number)


JobId = Annotated[int, typer.Argument(metavar="ID", parser=job_number, help="Number of the job.", show_default=False)]


def are_simulated(client: Client, jobs: Iterable[JobView]) -> bool:
    """True when GPUs that these jobs wait for are simulated; the lab is asked only where that is not known yet."""
    return any(job.resources.gpus and not job.devices for job in jobs) and client.lab().simulated


def open_client(home: Path | None) -> Client:
    """The lab that the options and the environment name."""
    # httpx loads its own command line with it, and that a terminal library: a third of the time that `carrel ps` would take.
    sys.modules.setdefault("httpx._main", cast(ModuleType, None))
    from carrel.client import Client

    return Client(home=home)
