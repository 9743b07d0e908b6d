"""`carrel rules`: change classes of service, accounts and priorities, and first see what that would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, argument, flag, open_client
from carrel.cli.screen import clean, print_json, print_table
from carrel.cli.words import local
from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import format_duration

if TYPE_CHECKING:
    from carrel.wire.v1 import RulesPreview, SimulatedRow


def rules_command(
    changes: Annotated[
        list[str],
        argument("NAME=VALUE...", "As in carrel.toml: qos.batch.priority=5, accounts.physics.shares=3; NAME= takes it out."),
    ],
    preview: Annotated[bool, flag("--preview", "Change nothing: simulate the lab's last jobs now and then.")] = False,
    days: Annotated[int, typer.Option(min=1, max=365, metavar="DAYS", help="With --preview: jobs of so many days.")] = 7,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Change rules of the lab: classes of service, accounts, priorities.

    For administrators. They are written into carrel.toml, whose comments stay, and are in force at once.
    """
    asked = _read(changes)
    with open_client(home) as client:
        found = client.preview_rules(asked, days=days) if preview else None
        changed = client.change_rules(asked) if found is None else found.changed
    if as_json:
        return print_json({"changed": changed} if found is None else found.model_dump(mode="json"))
    for path, change in changed.items():
        print(clean(f"{path}: {change}"))
    if found is None:
        print("The rules are in force.")
    else:
        _print(found)
    return OK


def _read(changes: list[str]) -> dict[str, Any]:
    from carrel.simulate.what_if import read_what_if

    gone = [change[:-1].strip() for change in changes if change.endswith("=")]
    what = read_what_if([change for change in changes if not change.endswith("=")])
    if what.gpus is not None:
        raise Invalid('"gpus" is no rule.', remedy="Ask `carrel simulate --what-if gpus=+4`.")
    return {**what.rules, **dict.fromkeys(gone)}


def _print(found: RulesPreview) -> None:
    print(f"\n{found.jobs:,} jobs since {local(found.since)}, simulated on {found.gpus} GPUs. Nothing is changed yet.")
    for note in found.notes:
        print(f"  {clean(note)}")
    for title, rows in (("", found.all), ("CLASS", found.qos), ("USER", found.users)):
        print()
        heads = (title, "JOBS", "MEAN WAIT", "THEN", "P95 WAIT", "THEN", "GPUS", "THEN", "REFUSED", "THEN")
        print_table(heads, [_row(row) for row in rows], right=range(1, len(heads)))


def _row(row: SimulatedRow) -> tuple[str, ...]:
    now, then = row.now, row.then
    return (
        row.name,
        f"{now.jobs:,}",
        _wait(now.mean_wait_seconds),
        _wait(then.mean_wait_seconds),
        _wait(now.p95_wait_seconds),
        _wait(then.p95_wait_seconds),
        _share(now.utilisation),
        _share(then.utilisation),
        str(now.refused),
        str(then.refused),
    )


def _wait(seconds: float | None) -> str:
    return "–" if seconds is None else format_duration(seconds)


def _share(part: float | None) -> str:
    return "–" if part is None else f"{100 * part:.1f} %"
