"""`carrel env`: named environments of the lab, and those in its home directory on this machine that tasks share."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrel.cli import environments
from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, flag, open_client
from carrel.cli.screen import print_json, print_table
from carrel.cli.words import size as size_text
from carrel.client.locate import default_home
from carrel.core.domain.errors import CarrelError, NotFound
from carrel.core.domain.units import format_count, format_duration, parse_duration

if TYPE_CHECKING:
    from carrel.node.environments import EnvironmentInfo, EnvironmentStore
    from carrel.wire import v1

env_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Environments: named ones for notebooks, and those that tasks share.",
)
for _name in ("create", "lock", "share", "restore", "remove"):
    env_command.command(_name)(getattr(environments, _name))


@env_command.command("list")
def list_environments(home: Home = None, as_json: AsJson = False) -> int:
    """List named environments; then, on the lab's machine, those that tasks share, the least recently used first.

    `--json` names the packages of each.
    """
    named, why = _named(home)
    if named is None and not _place(home).is_dir():
        raise why if why is not None and os.environ.get("CARREL_URL") else _no_lab(home)
    shared = _store(home).list() if _place(home).is_dir() else None
    if as_json:
        document: dict[str, Any] = {"environments": [_plain(info) for info in shared or ()]}
        if named is not None:
            document |= {"named": named.model_dump(mode="json")["environments"], "used": named.used, "quota": named.quota}
        print_json(document)
        return OK
    if named is not None:
        environments.print_named(named)
    elif why is not None:
        print(f"Named environments are not listed: {why.message}")
    if shared is not None:
        print()
        _print_shared(shared)
    return OK


def _print_shared(found: Sequence[EnvironmentInfo]) -> None:
    if not found:
        print("No environments of tasks yet; the first task that needs one builds it.")
        return
    rows = [_row(info) for info in found]
    print_table(("DIGEST", "SIZE", "LAST USED", "PYTHON", "PACKAGES"), rows, right=(1,))


def _named(home: Path | None) -> tuple[v1.NamedEnvironmentList | None, CarrelError | None]:
    """The named environments, or why the lab does not say."""
    try:
        with open_client(home) as client:
            return client.environments(), None
    except CarrelError as error:
        return None, error


@env_command.command("gc")
def collect(
    unused_for: Annotated[
        str, typer.Option(metavar="DURATION", help="Remove what no job used for so long; what a job uses now stays.")
    ] = "30d",
    dry_run: Annotated[bool, flag("--dry-run -n", "Say what would go, remove nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Remove environments that were not used for a while, and what interrupted builds left."""
    removed = _store(home).collect(unused_for=parse_duration(unused_for), now=time.time(), dry_run=dry_run)
    size = sum(info.size for info in removed)
    if as_json:
        return print_json({"removed": [_plain(info) for info in removed], "size": size, "dry_run": dry_run})
    print(f"{'Would remove' if dry_run else 'Removed'} {format_count(len(removed), 'environment')}, {size_text(size)}.")
    return OK


def _store(home: Path | None) -> EnvironmentStore:
    from carrel.node.environments import EnvironmentStore

    place = _place(home)
    if not place.is_dir():
        raise _no_lab(home)
    return EnvironmentStore(place / "environments")


def _place(home: Path | None) -> Path:
    return (home or default_home(os.environ)).expanduser()


def _no_lab(home: Path | None) -> NotFound:
    return NotFound(f"There is no lab in {_place(home)}.", remedy="Environments lie on the machine of the lab; name its --home.")


def _row(info: EnvironmentInfo) -> tuple[str, ...]:
    used = f"{format_duration(time.time() - info.last_used)} ago"
    packages = str(len(info.packages)) if info.complete else "(left by an interrupted build)"
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
