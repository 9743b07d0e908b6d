"""Options and arguments that several commands have, said once."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from carrel.cli.endings import wants_json
from carrel.cli.screen import clean, paint
from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrel.client import Client
    from carrel.wire.v1 import JobView


def option(names: str, metavar: str, help: str, **more: Any) -> Any:
    """An option with a value. Its help says in brackets what holds without it."""
    return typer.Option(*names.split(), metavar=metavar, help=help, show_default=False, **more)


def flag(names: str, help: str) -> Any:
    """An option that is given or not."""
    return typer.Option(*names.split(), help=help, show_default=False)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """An argument. Its help says in brackets what holds without it."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


AsJson = Annotated[bool, flag("--json", "Print JSON for programs.")]
Home = Annotated[Path | None, option("--home", "DIR", "The lab's home directory.  [CARREL_HOME or ~/.local/share/carrel]")]

Expires = Annotated[str | None, option("--expires", "TIME", 'For how long it holds: "30d", "12h", or "never".')]


def lifetime(text: str | None) -> int | None:
    """Seconds for which a token is to hold, 0 for "never"; None where the lab is to say."""
    return None if text is None else 0 if text.strip().lower() == "never" else parse_duration(text)


def moment_of(option: str, text: str) -> datetime:
    """A moment as people write it, on this machine's clock."""
    if text == "now":
        return datetime.now().astimezone()
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        pass
    try:
        return datetime.now().astimezone() + timedelta(seconds=parse_duration(text))
    except Invalid:
        raise Invalid(
            f'{option} "{text}" is no moment.', remedy='Write "2026-12-01 09:00", "now", or how far ahead: "2h".'
        ) from None


def job_number(text: str) -> int:
    """A job's number, as a person types it."""
    number = text.removeprefix("#")
    if not (number.isascii() and number.isdigit() and len(number) < 19 and int(number)):
        raise typer.BadParameter(f'"{text}" is not the number of a job.')
    return int(number)


@dataclass(frozen=True, slots=True)
class JobName:
    """A job as a person names it: by its number, or as an element of an array ("12_3")."""

    number: int
    #: Set when `number` is an array's.
    index: int | None = None

    def __str__(self) -> str:
        return str(self.number) if self.index is None else f"{self.number}_{self.index}"


def job_name(text: str) -> JobName:
    """A job's number, or "12_3" for an element of an array, as a person types it."""
    number, underscore, index = text.partition("_")
    if underscore and not (index.isascii() and index.isdigit() and len(index) < 10):
        raise typer.BadParameter(f'"{text}" is not the number of a job: an element of an array is called such as "12_3".')
    return JobName(job_number(number), int(index) if underscore else None)


def find_job(client: Client, name: JobName) -> int:
    """The number of the job that is named."""
    return name.number if name.index is None else client.element(name.number, name.index).id


JobId = Annotated[JobName, argument("ID", 'Number of the job; "12_3" in an array.', parser=job_name)]


def simulated_jobs(client: Client, jobs: Iterable[JobView]) -> frozenset[int]:
    """Those of the jobs whose GPUs are simulated; the lab is asked only where that is not known yet."""
    waiting = [job for job in jobs if job.resources.gpus and not job.devices]
    lab = client.lab() if waiting else None
    if lab is None or not lab.simulated:
        return frozenset()
    clusters = {partition.name for partition in lab.partitions if partition.place}
    return frozenset(job.id for job in waiting if job.partition not in clusters)


def open_client(home: Path | None) -> Client:
    """The lab that the options and the environment name."""
    # httpx loads its own command line with it, and that a terminal library: a third of the time that `carrel ps` would take.
    sys.modules.setdefault("httpx._main", cast(ModuleType, None))
    from carrel.client import Client

    return Client(home=home, notice=None if wants_json(sys.argv[1:]) else StorageNotice().tell)


class StorageNotice:
    """Says once on stderr that a disk of the lab's has no room, under every command."""

    def __init__(self) -> None:
        self._told = ""

    def tell(self, room: str, message: str) -> None:
        """Say it, unless it was said."""
        if room != self._told:
            self._told = room
            print(f"{paint('warning:', 'yellow', sys.stderr)} {clean(message)}", file=sys.stderr, flush=True)
