"""`carrel announce` and `carrel announcement`: what an administrator tells all users."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.nouns import Removal, noun_command, print_records
from carrel.cli.options import AsJson, Home, argument, moment_of, open_client, option
from carrel.cli.screen import clean, paint
from carrel.cli.words import local
from carrel.core.domain.announcement import Announcement, Level
from carrel.core.domain.nouns import ANNOUNCEMENTS

if TYPE_CHECKING:
    from carrel.client import Client


def announce_command(
    text: Annotated[str, argument("TEXT", "What all users are told, on one line.")],
    until: Annotated[str, option("--until", "WHEN", '"2026-12-01 18:00" on this clock, or in "2h".')],
    begin: Annotated[str, typer.Option("--from", metavar="WHEN", help='The same, or "now".')] = "now",
    level: Annotated[Level, typer.Option(help="How much it matters.")] = Level.INFO,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Tell all users something: on the lab's front page, above `carrel ps`, and in notebooks.

    For administrators. `carrel announcement delete` takes it back.
    """
    asked = Announcement(
        text=text,
        begin=moment_of("--from", begin).timestamp(),
        until=moment_of("--until", until).timestamp(),
        level=level,
    )
    with open_client(home) as client:
        made = client.add(ANNOUNCEMENTS, asked)
    if as_json:
        print_records("announcements", [made])
    else:
        print(f"All users are told from {local(made.begin)} until {local(made.until)} (announcement {made.id}).")
    return OK


announcement_command = noun_command(
    ANNOUNCEMENTS,
    about="Look at what all users are told, and take it back.",
    listed="List announcements that hold; administrators also see those to come.",
    key="As `carrel announcement list` shows it.",
    columns={
        "ID": lambda one: str(one.id),
        "LEVEL": lambda one: one.level.value,
        "FROM": lambda one: local(one.begin),
        "UNTIL": lambda one: local(one.until),
        "BY": lambda one: one.by,
        "TEXT": lambda one: one.text,
    },
    removal=Removal(help="Tell users something no longer.\n\nFor administrators.", done="Announcement {} is taken back."),
)


def tell_announcements(client: Client) -> None:
    """Say on stderr what users are told now."""
    for one in client.all_of(ANNOUNCEMENTS):
        style = "yellow" if one.level is Level.WARNING else "bold"
        print(f"{paint(f'{one.level.value}:', style, sys.stderr)} {clean(one.text)}", file=sys.stderr)
