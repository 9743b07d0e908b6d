"""`carrel audit`: who did what in the lab, and what was refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, argument, flag, open_client, option
from carrel.cli.screen import clean, print_json

if TYPE_CHECKING:
    from carrel import Client

audit_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Show who did what in the lab, where from and by which rule, and what was refused (operators, administrators).",
)
User = Annotated[str | None, option("--user", "NAME", "Only what this user asked for.")]
ActionName = Annotated[str | None, option("--action", "WORDS", 'Only this action, such as "submit jobs".')]
Thing = Annotated[str | None, option("--resource", "PATH", "Only this and what is below it: /jobs/12.")]
Refused = Annotated[bool, flag("--refused", "Only what was refused.")]
Since = Annotated[str | None, option("--since", "TIME", "Only from then on: 2026-11-23T08:00, in UTC.")]
Until = Annotated[str | None, option("--until", "TIME", "Only before that.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="The last lines, so many.")]


@audit_command.command("list")
def list_lines(
    user: User = None,
    action: ActionName = None,
    resource: Thing = None,
    refused: Refused = False,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show the last lines of the audit log."""
    with open_client(home) as client:
        page = client.audit(
            user=user, action=action, resource=resource, result="refused" if refused else None, since=since, until=until,
            limit=limit, newest=True,
        )  # fmt: skip
    if as_json:
        return print_json({"lines": page.lines})
    for entry in page.lines:
        _print(entry)
    return OK


@audit_command.command("export")
def export(
    file: Annotated[Path | None, argument("[FILE]", "Where to; the standard output without it.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Write every line that is kept, as the log has it: one JSON object a line."""
    with open_client(home) as client:
        if file is None:
            for line in _every(client):
                print(line)
            return OK
        count = 0
        with file.open("w") as target:
            for line in _every(client):
                target.write(line + "\n")
                count += 1
    if as_json:
        return print_json({"lines": count, "file": str(file)})
    print(f"{count} lines are in {file}.")
    return OK


def _every(client: Client) -> Iterator[str]:
    after: int | None = 0
    while after is not None:
        page = client.audit(after=after, limit=1000)
        for entry in page.lines:
            yield json.dumps(entry, separators=(",", ":"))
        after = page.next


def _print(entry: dict[str, Any]) -> None:
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(entry["at"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    who = entry.get("who") or "-"
    who += f" (job {entry['job']})" if entry.get("job") else ""
    rule = f" [{entry['rule']}]" if entry.get("rule") else ""
    thing = f"{entry.get('method', '')} {entry.get('resource', '')}".strip()
    more = f", and {entry['more']} before it" if entry.get("more") else ""
    made = f" -> {entry['made']}" if entry.get("made") else ""
    said = f"{entry['seq']:>7}  {at}  {who}  {entry.get('from', '-')}  {entry['result']}{rule}  {entry['action']}"
    print(clean(f"{said}  {thing}{made}{more}"), file=sys.stdout)
