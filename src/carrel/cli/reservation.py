"""`carrel reservation`: nodes that are kept for maintenance, or for a course (administrators)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.nouns import Removal, noun_command, print_records
from carrel.cli.options import AsJson, Home, argument, moment_of, open_client, option
from carrel.cli.words import local
from carrel.core.domain.nouns import RESERVATIONS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.units import format_duration, parse_duration

_WEEK = timedelta(days=7)


def _length(one: Reservation) -> str:
    return format_duration(one.end - one.begin)


def _whose(one: Reservation) -> str:
    people = [*sorted(one.users), *(f"account {account}" for account in sorted(one.accounts))]
    if people:
        return ", ".join(people)
    return "you among others" if one.admits_me else "nobody"


reservation_command = noun_command(
    RESERVATIONS,
    about="Keep nodes for maintenance, or for some people, between two moments.",
    listed="List reservations that are in force and those to come.",
    key="Name of the reservation.",
    columns={
        "NAME": lambda one: one.name,
        "BEGINS": lambda one: local(one.begin),
        "FOR": _length,
        "NODES": lambda one: ", ".join(one.nodes),
        "WHOSE": _whose,
        "REASON": lambda one: one.reason,
    },
    removal=Removal(
        help="Release the nodes of a reservation, or take back one that is to come.\n\n"
        "For administrators. Jobs that waited for its end are placed at once.",
        done="There is no reservation {} any more.",
    ),
)


@reservation_command.command("create")
def create(
    name: Annotated[str, argument("NAME", "Name of the reservation.")],
    reason: Annotated[str, argument("REASON", "What for: everybody who waits for it reads this.")],
    duration: Annotated[str, option("--for", "DURATION", 'How long, such as "4h".')],
    begin: Annotated[
        str, typer.Option("--from", metavar="WHEN", help='"2026-12-01 09:00" on this clock, "now", or in "2h".')
    ] = "now",
    nodes: Annotated[list[str] | None, option("--node", "NODES", 'Such as "gpu[01-04]"; may be repeated.  [all nodes]')] = None,
    users: Annotated[list[str] | None, option("--user", "USER", "Whose jobs may run there; may be repeated.")] = None,
    accounts: Annotated[
        list[str] | None, option("--account", "ACCOUNT", "For whose account jobs may run there; may be repeated.")
    ] = None,
    weeks: Annotated[int, typer.Option(min=1, max=60, metavar="N", help="The same each week, N times.")] = 1,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Keep nodes for the jobs of some people; with nobody named it is maintenance.

    For administrators. What runs there goes on; jobs of others do not start there when their walltime would reach into it.
    One of the same name is replaced. With --weeks they are called NAME-1, NAME-2 and so on.
    """
    first, length = moment_of("--from", begin), timedelta(seconds=parse_duration(duration))
    made = []
    with open_client(home) as client:
        for week in range(weeks):
            # On the wall clock, so that a course begins at the same hour when summer time ends between two of them.
            start = (first.replace(tzinfo=None) + week * _WEEK).astimezone()
            asked = Reservation(
                name=name if weeks == 1 else f"{name}-{week + 1}",
                begin=start.timestamp(),
                end=(start + length).timestamp(),
                nodes=tuple(nodes or ["*"]),
                users=frozenset(users or []),
                accounts=frozenset(accounts or []),
                reason=reason,
            )
            made.append(client.reserve(asked)[1])
    if as_json:
        print_records("reservations", made)
        return OK
    for one in made:
        print(f"{one.name}: {', '.join(one.nodes)} from {local(one.begin)} for {_length(one)}, for {_whose(one)}.")
    return OK
