"""`carrel doctor`: is everything here that this machine needs, as a client or as a lab?"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.doctor import node, people, program
from carrel.cli.doctor.check import Check
from carrel.cli.doctor.cluster import slurm_checks
from carrel.cli.endings import OK, OTHER
from carrel.cli.options import AsJson, Home, argument, option
from carrel.cli.screen import clean, paint, print_json
from carrel.client.locate import default_home
from carrel.core.domain.errors import CarrelError

if TYPE_CHECKING:
    from carrel.lab.server.settings import Settings

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


class Part(StrEnum):
    """What can be looked at beside this machine."""

    SLURM = "slurm"


def doctor_command(
    what: Annotated[Part | None, argument("[slurm]", "Check the Slurm cluster instead.")] = None,
    patience: Annotated[float, typer.Option(metavar="SECONDS", help="How long a tiny job may take to start in Slurm.")] = 60.0,
    person: Annotated[str | None, option("--as", "USER", "Try whether jobs of this user of the lab can run as theirs.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Check this machine and the lab; or, with `slurm`, the cluster that its partitions are on.

    Works without a lab. Ends with 1 when something fails; warnings are no failure.
    """
    found: list[Check] = []
    place = (home or default_home(os.environ)).expanduser().absolute()
    for check in run_checks(place, home) if what is None else slurm_checks(place, patience, person):
        found.append(check)
        if not as_json:
            _print_check(check)
    failed = any(check.status == "fail" for check in found)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in found]})
    return OTHER if failed else OK


def run_checks(place: Path, given: Path | None) -> Iterator[Check]:
    """Every check, one after the other. A check that fails of itself is a failed check, not the end."""
    server = not program.missing()
    settings = _settings(place) if server else None
    looks: list[tuple[str, Callable[[], Check]]] = [
        ("python", program.python),
        ("command", program.command),
        ("server", program.server),
        ("uv", program.uv),
        ("git", program.git),
        ("home", lambda: program.home(place)),
        ("token", lambda: program.token(place)),
        ("lab", lambda: program.lab(given)),
        ("backends", program.backends),
    ]
    if server:
        simulated = settings.simulate_gpus if settings is not None else None
        looks += [
            ("settings", lambda: program.settings(place)),
            ("gpus", lambda: node.gpus(simulated or program.simulated_gpus(given))),
            ("residency", node.residency),
            ("memory", node.memory),
            ("nursery", node.nursery),
            ("labs", node.labs),
        ]
        looks += [("images", node.images)]
    if settings is not None:  # without them these would only say once more what is wrong with the file
        looks += [("states", lambda: node.states(place)), ("isolation", lambda: node.isolation(place))]
        looks += [("sign-in", lambda: people.sign_in(place)), ("provider", lambda: people.provider(place))]
    for name, look in looks:
        try:
            yield look()
        except (CarrelError, OSError, ValueError, subprocess.SubprocessError) as error:
            remedy = error.remedy if isinstance(error, CarrelError) else ""
            yield Check(name, "fail", error.message if isinstance(error, CarrelError) else str(error), remedy)


def _settings(place: Path) -> Settings | None:
    """The lab's settings, or None where they cannot be read: `program.settings` says why."""
    from carrel.lab.server.home import LabHome
    from carrel.lab.server.settings import read_settings

    try:
        return read_settings(LabHome(place).settings, os.environ, {})
    except CarrelError:
        return None


def _print_check(check: Check) -> None:
    print(f"{paint(check.status.ljust(4), _STYLES[check.status])}  {check.name.ljust(9)} {clean(check.message)}")
    if check.remedy:
        print(f"{' ' * 15}{paint(check.remedy, 'dim')}")
