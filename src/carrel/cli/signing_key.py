"""`carrel signing-key`: by which key deputies and nodes of a cluster know what this lab has ordered."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home
from carrel.cli.screen import print_json

if TYPE_CHECKING:
    from carrel.lab.server.home import LabHome

signing_key_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Say the public key that the lab signs launches with, or change the key. Works beside a running lab, on its machine.",
)


@signing_key_command.command("show")
def show(home: Home = None, as_json: AsJson = False) -> int:
    """Say the public key that the lab signs launches with, and the next one if there is one."""
    _print(_home(home), as_json, "")
    return OK


@signing_key_command.command("next")
def make_next(home: Home = None, as_json: AsJson = False) -> int:
    """Make the next key. Nothing is signed with it before `use-next`."""
    from carrel.lab.server.signing import LabKey

    place = _home(home)
    LabKey(place, following=True)
    _print(place, as_json, "When deputies know both: carrel signing-key use-next, and restart the lab.")
    return OK


@signing_key_command.command("use-next")
def use_next(home: Home = None, as_json: AsJson = False) -> int:
    """Put the next key in the place of the present one, which is gone. The lab signs with it when it starts again."""
    place = _home(home)
    place.use_next_signing_key()
    _print(place, as_json, "Restart the lab; then take the old key out of the deputies' file.")
    return OK


def _home(home: Path | None) -> LabHome:
    from carrel.client.locate import default_home
    from carrel.lab.server.home import LabHome

    place = LabHome((home or default_home(os.environ)).expanduser().absolute())
    place.create()
    return place


def _print(place: LabHome, as_json: bool, then: str) -> None:
    from carrel.lab.server.home import NEXT_SIGNING_KEY
    from carrel.lab.server.signing import LabKey

    keys = [LabKey(place).public]
    if (place.path / NEXT_SIGNING_KEY).exists():
        keys.append(LabKey(place, following=True).public)
    if as_json:
        print_json({"key": keys[0], "next": keys[1] if len(keys) > 1 else None})
        return
    said = f'"{keys[0]}"' if len(keys) == 1 else f'["{keys[0]}", "{keys[1]}"]'
    print(f"lab_key = {said}")
    print("That line in the deputies' file (docs/slurm.md) keeps them for this lab.")
    if then:
        print(then)
