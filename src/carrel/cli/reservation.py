"""`carrel reservation`: nodes that are kept for maintenance, or for a course (administrators)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, open_client
from carrel.core.domain.errors import Invalid

if TYPE_CHECKING:
    from carrel.wire.v1 import ReservationView

_WEEK = timedelta(days=7)

reservation_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Keep nodes for maintenance, or for some people, between two moments.",
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the reservation.", show_default=False)]


@reservation_command.command("create")
def create(
    name: Name,
    reason: Annotated[
        str, typer.Argument(metavar="REASON", help="What for: everybody who waits for it reads this.", show_default=False)
    ],
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help='How long, such as "4h".', show_default=False)],
    begin: Annotated[
        str, typer.Option("--from", metavar="WHEN", help='"2026-12-01 09:00" on this clock, "now", or in "2h".')
    ] = "now",
    nodes: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NODES", help='Such as "gpu[01-04]"; may be repeated.  [all nodes]', show_default=False),
    ] = None,
    users: Annotated[
        list[str] | None,
        typer.Option("--user", metavar="USER", help="Whose jobs may run there; may be repeated.", show_default=False),
    ] = None,
    accounts: Annotated[
        list[str] | None,
        typer.Option("--account", metavar="ACCOUNT", help="For whose account jobs may run there; may be repeated."),
    ] = None,
    weeks: Annotated[int, typer.Option(min=1, max=60, metavar="N", help="The same each week, N times.")] = 1,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Keep nodes for the jobs of some people; with nobody named it is maintenance.

    For administrators. What runs there goes on; jobs of others do not start there when their walltime would reach into it.
    One of the same name is replaced. With --weeks they are called NAME-1, NAME-2 and so on.
    """
    from carrel.cli.screen import print_json
    from carrel.core.domain.units import parse_duration
    from carrel.wire.v1 import ReservationRequest

    first, length = _moment(begin), timedelta(seconds=parse_duration(duration))
    made = []
    with open_client(home) as client:
        for week in range(weeks):
            # On the wall clock, so that a course begins at the same hour when summer time ends between two of them.
            start = (first.replace(tzinfo=None) + week * _WEEK).astimezone()
            request = ReservationRequest(
                begin=start,
                end=start + length,
                nodes=nodes or ["*"],
                users=users or [],
                accounts=accounts or [],
                reason=reason,
            )
            made.append(client.reserve(name if weeks == 1 else f"{name}-{week + 1}", request))
    if as_json:
        print_json({"reservations": [one.reservation.model_dump(mode="json") for one in made]})
    else:
        for one in made:
            print(_sentence(one.reservation))
    return OK


@reservation_command.command("list")
def list_reservations(home: Home = None, as_json: AsJson = False) -> int:
    """List reservations that are in force and those to come."""
    from carrel.cli.screen import print_json, print_table
    from carrel.cli.words import local
    from carrel.core.domain.units import format_duration

    with open_client(home) as client:
        found = client.reservations()
    if as_json:
        print_json({"reservations": [one.model_dump(mode="json") for one in found]})
        return OK
    rows = [
        (
            one.name,
            local(one.begin),
            format_duration((one.end - one.begin).total_seconds()),
            ", ".join(one.nodes),
            _whose(one),
            one.reason,
        )
        for one in found
    ]
    print_table(("NAME", "BEGINS", "FOR", "NODES", "WHOSE", "REASON"), rows)
    return OK


@reservation_command.command("delete")
def delete(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Release the nodes of a reservation, or take back one that is to come.

    For administrators. Jobs that waited for its end are placed at once.
    """
    from carrel.cli.screen import print_json

    with open_client(home) as client:
        client.release(name)
    if as_json:
        print_json({"deleted": name})
    else:
        print(f"There is no reservation {name} any more.")
    return OK


def _moment(text: str) -> datetime:
    """A moment as people write it, on this machine's clock."""
    from carrel.core.domain.units import parse_duration

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
            f'--from "{text}" is no moment.', remedy='Write "2026-12-01 09:00", "now", or how far ahead: "2h".'
        ) from None


def _sentence(one: ReservationView) -> str:
    from carrel.cli.words import local
    from carrel.core.domain.units import format_duration

    length = format_duration((one.end - one.begin).total_seconds())
    return f"{one.name}: {', '.join(one.nodes)} from {local(one.begin)} for {length}, for {_whose(one)}."


def _whose(one: ReservationView) -> str:
    people = [*one.users, *(f"account {account}" for account in one.accounts)]
    if people:
        return ", ".join(people)
    return "you among others" if one.admits_me else "nobody"
