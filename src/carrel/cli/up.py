"""`carrel up`: the lab itself. Needs the server's packages; everything else in the command line does not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from carrel.cli.options import AsJson, Home, flag, option
from carrel.client.locate import default_home
from carrel.core.domain.errors import Invalid, Unavailable
from carrel.core.submission.installed import install_command
from carrel.lab.server.settings import SETTINGS

_HELP = {setting.name: setting.help for setting in SETTINGS}


def up_command(
    home: Home = None,
    host: Annotated[str | None, option("--host", "ADDRESS", f"{_HELP['host']}  [127.0.0.1]")] = None,
    port: Annotated[int | None, option("--port", "PORT", f"{_HELP['port']} 0 takes any.  [8642]", min=0, max=65535)] = None,
    simulate_gpus: Annotated[int | None, option("--simulate-gpus", "N", _HELP["simulate_gpus"], min=0)] = None,
    tracking: Annotated[bool | None, typer.Option("--tracking/--no-tracking", help=_HELP["tracking"])] = None,
    database: Annotated[str | None, option("--database", "URL", _HELP["database"])] = None,
    cpus: Annotated[int | None, option("--cpus", "N", _HELP["cpus"], min=1)] = None,
    memory: Annotated[str | None, option("--memory", "SIZE", _HELP["memory"])] = None,
    default_qos: Annotated[str | None, option("--default-qos", "QOS", _HELP["default_qos"])] = None,
    moved: Annotated[
        bool, flag("--moved", "The home is not where it was: it is the same lab, and goes on with its jobs.")
    ] = False,
    strict_modes: Annotated[
        bool, typer.Option(help="Refuse a home that other Unix users could write to, or put another in the place of.")
    ] = True,
    as_json: AsJson = False,
) -> int:
    """Run a lab on this machine, until Ctrl-C.

    Tasks that run then go on, and the next `carrel up` finds them again. More settings are in carrel.toml in the home
    directory and in variables (CARREL_PORT for port, and so on); see docs/settings.md.
    """
    if database is not None and "@" in database and ":" in database.rpartition("@")[0].partition("://")[2]:
        raise Invalid(
            "The database's address has a password in it, which every user of this machine could read in the process list.",
            remedy="Put it into carrel.toml, or into CARREL_DATABASE.",
        )
    place = (home or default_home(os.environ)).expanduser().absolute()
    options = {
        "host": host,
        "port": port,
        "simulate_gpus": simulate_gpus,
        "tracking": tracking,
        "database": database,
        "cpus": cpus,
        "memory": memory,
        "default_qos": default_qos,
    }
    try:
        from carrel.lab.server.up import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "carrel":
            raise
        raise Unavailable(
            f'The packages of the server are not installed ("{error.name}" is missing).',
            remedy=f"Install them: {install_command('server')}",
        ) from error
    return run(
        home=place,
        options={k: v for k, v in options.items() if v is not None},
        moved=moved,
        strict=strict_modes,
        say=_json_say(place) if as_json else _say,
    )


def _say(line: str) -> None:
    print(line, flush=True)


def _json_say(home: Path) -> Callable[[str], None]:
    """One document as soon as the lab has written its address; what it says to people is left out."""
    said = False

    def say(_line: str) -> None:
        nonlocal said
        if not said:
            said = True
            address = json.loads((home / "address.json").read_text())
            print(json.dumps({"home": str(home), "url": address["url"], "pid": address["pid"]}), flush=True)

    return say
