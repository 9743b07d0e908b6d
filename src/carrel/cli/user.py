"""`carrel user`: who may use the lab (administrators)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Expires, Home, argument, flag, lifetime, open_client, option
from carrel.cli.screen import print_json, print_table
from carrel.cli.words import until
from carrel.core.domain.units import format_count, parse_duration

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire import v1

user_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Add, invite, list, suspend and remove users, give and end their tokens (administrators).",
)

Without = Annotated[
    bool, flag("--without-isolation", "They may be trusted with the whole lab: nothing keeps jobs apart on this machine.")
]
Subject = Annotated[str, argument("SUBJECT", "As `carrel user list` shows it.")]


@user_command.command("add")
def add(
    name: Annotated[str, argument("NAME", "Name of the user.")],
    admin: Annotated[bool, flag("--admin", "Make an administrator of them.")] = False,
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="user, manager (of their accounts), operator or admin.")
    ] = "user",
    expires: Expires = None,
    without_isolation: Without = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Add a user, and print the token, which is not shown again."""
    with open_client(home) as client:
        held = lifetime(expires)
        made = client.add_user(name, "admin" if admin else role, expires_in=held, without_isolation=without_isolation)
        trust = _trust(client)
    _hand_over(made, trust, f"Added {made.user.name} ({made.user.role}).", as_json=as_json)
    if not as_json:
        _say_reach(made)
    return OK


@user_command.command("reset")
def reset(subject: Subject, expires: Expires = None, home: Home = None, as_json: AsJson = False) -> int:
    """Give a user who has lost their token a new one; all others of theirs are void from now on."""
    with open_client(home) as client:
        made, trust = client.reset_user(subject, expires_in=lifetime(expires)), _trust(client)
    fact = f"All tokens that {made.user.name} had are void, those of their jobs too, and what was open with them ends."
    _hand_over(made, trust, fact, as_json=as_json)
    return OK


@user_command.command("invite")
def invite(
    name: Annotated[str, argument("NAME", "Name of the user, new or not.")],
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="user, manager (of their accounts), operator or admin.")
    ] = "user",
    expires: Annotated[str | None, option("--expires", "TIME", "For how long it can be used.  [7d]")] = None,
    without_isolation: Without = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Invite somebody: they turn a code, once, into a token that nobody else has seen."""
    with open_client(home) as client:
        held = None if expires is None else parse_duration(expires)
        made = client.invite_user(name, role, expires_in=held, without_isolation=without_isolation)
        trust = _trust(client)
    if as_json:
        return print_json(made)
    print(f"Give {made.user.name} this line; it works once, {until(made.expires_at)}:")
    print(f"  carrel login {made.url} --invitation {made.code}{trust}")
    print("or this link, where they choose a password in their browser:")
    # Behind the sign that browsers send to nobody: the code is in no server's log.
    print(f"  {made.url}/invitation#{made.code}")
    _say_reach(made)
    return OK


@user_command.command("suspend")
def suspend(
    subject: Subject,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why: the user reads it.")] = "",
    cancel_running: Annotated[bool, flag("--cancel-running", "Cancel what runs too.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Accept nothing of a user's any more, start nothing, and end what they have open; jobs that run go on."""
    with open_client(home) as client:
        change = client.suspend_user(subject, reason, cancel_running=cancel_running)
    if as_json:
        return print_json(change)
    running = "Jobs that run go on, and what they ask the lab or track is refused."
    if cancel_running:
        running = f"{format_count(change.cancelled, 'job')} that ran will end."
    print(f"{change.user.name} is suspended, and what they had open ends now. {running}")
    print(f"`carrel user resume {subject}` lets them go on.")
    return OK


@user_command.command("resume")
def resume(subject: Subject, home: Home = None, as_json: AsJson = False) -> int:
    """Let a user go on who was suspended or removed."""
    with open_client(home) as client:
        change = client.resume_user(subject)
    if as_json:
        return print_json(change)
    print(f"{change.user.name} may go on. If they have no token any more: `carrel user reset {subject}`.")
    return OK


@user_command.command("remove")
def remove(subject: Subject, home: Home = None, as_json: AsJson = False) -> int:
    """End a user's tokens and jobs; their records stay, and nobody else gets the name."""
    with open_client(home) as client:
        change = client.remove_user(subject)
    if as_json:
        return print_json(change)
    print(f"{change.user.name} is removed, and {format_count(change.cancelled, 'job')} of theirs will end. Records stay.")
    return OK


def _trust(client: Client) -> str:
    """What `carrel login` on another machine needs to trust the lab."""
    if client.authority is None:
        return ""
    from carrel.core.domain.authority import fingerprint

    return f" --trust {fingerprint(client.authority.read_text())}"


def _say_reach(made: v1.NewUser | v1.Invitation) -> None:
    """Say who cannot reach the address, and what keeps jobs apart."""
    from textwrap import fill
    from urllib.parse import urlsplit

    from carrel.lab.server.network import loopback

    parts = urlsplit(made.url)
    if loopback(parts.hostname or ""):
        print(
            "Other machines cannot reach this address. Let the lab listen for them (host, tls_own and public_url in carrel.toml,"
        )
        print(f"see docs/settings.md), or have them run this on theirs first: ssh -N -L {parts.port}:{parts.netloc} THIS-MACHINE")
    if made.isolation:
        print(fill(made.isolation, 120))


def _hand_over(made: v1.NewUser, trust: str, fact: str, *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    print(f"{fact} Give them these two lines; the token is not shown again, and holds {until(made.expires_at)}:")
    print(f"  export CARREL_URL={made.url}")
    print(f"  export CARREL_TOKEN={made.token}")
    if trust:
        print("The lab signs its own certificates. On another machine this line is first; it asks for the token:")
        print(f"  carrel login {made.url}{trust}")


@user_command.command("list")
def list_users(
    programs: Annotated[bool, flag("--all", "Also the users as whom the programs of challenges run.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """List all users."""
    with open_client(home) as client:
        users = client.users(programs=programs)
    if as_json:
        return print_json({"users": [user.model_dump(mode="json") for user in users]})
    rows = [(user.subject, user.name, user.role, user.account, user.state, user.linked_to) for user in users]
    # A column that is empty for everybody says nothing.
    width = None if any(user.linked_to for user in users) else -1
    print_table(("SUBJECT", "NAME", "ROLE", "ACCOUNT", "STATE", "PROVIDER")[:width], [row[:width] for row in rows])
    return OK


@user_command.command("revoke")
def revoke(
    subject: Subject,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """End all tokens of a user, and what is open with them."""
    with open_client(home) as client:
        client.revoke_tokens(subject)
    if as_json:
        return print_json({"revoked": subject})
    print(f"No token of {subject} is valid any more, and what was open with them ends now. Jobs that run go on, without the")
    print("right to ask the lab or to track, and so do those that wait: who needs that submits them again.")
    return OK
