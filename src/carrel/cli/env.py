"""`carrel env`: the environments in a lab's home directory on this machine."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home
from carrel.cli.words import size as size_text
from carrel.client.locate import default_home
from carrel.domain.errors import NotFound
from carrel.domain.units import format_duration, parse_duration

if TYPE_CHECKING:
    from carrel.environments import EnvironmentInfo, EnvironmentStore

env_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="List environments that tasks share; remove unused ones.",
)


@env_command.command("list")
def list_environments(home: Home = None, as_json: AsJson = False) -> int:
    """List the environments, the least recently used first."""
    from carrel.cli.screen import print_json, print_table

    found = _store(home).list()
    if as_json:
        print_json({"environments": [_plain(info) for info in found]})
    elif not found:
        print("No environments yet; the first task that needs one builds it.")
    else:
        rows = [_row(info) for info in found]
        print_table(("DIGEST", "SIZE", "LAST USED", "PYTHON", "PACKAGES"), rows, right=(1,))
    return OK


@env_command.command("gc")
def collect(
    unused_for: Annotated[
        str, typer.Option(metavar="DURATION", help="Remove what no job used for so long; what a job uses now stays.")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would go, remove nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Remove environments that were not used for a while, and what interrupted builds left."""
    from carrel.cli.screen import print_json
    from carrel.cli.words import count

    removed = _store(home).collect(unused_for=parse_duration(unused_for), now=time.time(), dry_run=dry_run)
    size = sum(info.size for info in removed)
    if as_json:
        print_json({"removed": [_plain(info) for info in removed], "size": size, "dry_run": dry_run})
    else:
        print(f"{'Would remove' if dry_run else 'Removed'} {count(len(removed), 'environment')}, {size_text(size)}.")
    return OK


def _store(home: Path | None) -> EnvironmentStore:
    from carrel.environments import EnvironmentStore

    place = (home or default_home(os.environ)).expanduser()
    if not place.is_dir():
        raise NotFound(f"There is no lab in {place}.", remedy="Environments lie on the machine of the lab; name its --home.")
    return EnvironmentStore(place / "environments")


def _row(info: EnvironmentInfo) -> tuple[str, ...]:
    used = f"{format_duration(time.time() - info.last_used)} ago"
    packages = ", ".join(info.packages) if info.complete else "(left by an interrupted build)"
    return info.digest.removeprefix("sha256:")[:12], size_text(info.size), used, info.python, packages


def _plain(info: EnvironmentInfo) -> dict[str, Any]:
    return {
        "digest": info.digest,
        "complete": info.complete,
        "path": str(info.path),
        "size": info.size,
        "created": datetime.fromtimestamp(info.created, UTC).isoformat(),
        "last_used": datetime.fromtimestamp(info.last_used, UTC).isoformat(),
        "packages": list(info.packages),
        "python": info.python,
    }
