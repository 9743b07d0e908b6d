"""`carrel user`: who may use the lab (administrators)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Expires, Home, lifetime, open_client

if TYPE_CHECKING:
    from carrel.wire import v1

user_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Add and list users, give and end their tokens (administrators).",
)

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="As `carrel user list` shows it.", show_default=False)]


@user_command.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.", show_default=False)],
    admin: Annotated[bool, typer.Option("--admin", help="Make an administrator of them.")] = False,
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="user, manager (of their accounts), operator or admin.")
    ] = "user",
    expires: Expires = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Add a user, and print the token, which is not shown again."""
    with open_client(home) as client:
        made, url = client.add_user(name, "admin" if admin else role, expires_in=lifetime(expires)), client.url
    _hand_over(made, url, f"Added {made.user.name} ({made.user.role}).", as_json=as_json)
    return OK


@user_command.command("reset")
def reset(subject: Subject, expires: Expires = None, home: Home = None, as_json: AsJson = False) -> int:
    """Give a user who has lost their token a new one; all others of theirs are void from now on."""
    with open_client(home) as client:
        made, url = client.reset_user(subject, expires_in=lifetime(expires)), client.url
    _hand_over(made, url, f"All tokens that {made.user.name} had are void.", as_json=as_json)
    return OK


def _hand_over(made: v1.NewUser, url: str, fact: str, *, as_json: bool) -> None:
    from carrel.cli.screen import print_json
    from carrel.cli.words import until

    if as_json:
        print_json(made)
        return
    print(f"{fact} Give them these two lines; the token is not shown again, and holds {until(made.expires_at)}:")
    print(f"  export CARREL_URL={url}")
    print(f"  export CARREL_TOKEN={made.token}")


@user_command.command("list")
def list_users(home: Home = None, as_json: AsJson = False) -> int:
    """List all users."""
    from carrel.cli.screen import print_json, print_table

    with open_client(home) as client:
        users = client.users()
    if as_json:
        print_json({"users": [user.model_dump() for user in users]})
    else:
        print_table(
            ("SUBJECT", "NAME", "ROLE", "ACCOUNT"), [(user.subject, user.name, user.role, user.account) for user in users]
        )
    return OK


@user_command.command("revoke")
def revoke(
    subject: Subject,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """End all tokens of a user."""
    from carrel.cli.screen import print_json

    with open_client(home) as client:
        client.revoke_tokens(subject)
    if as_json:
        print_json({"revoked": subject})
    else:
        print(f"No token of {subject} is valid any more.")
    return OK
