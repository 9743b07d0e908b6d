"""`carrel user`: who may use the lab (administrators)."""

from __future__ import annotations

from typing import Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, open_client

user_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Add and list users, end tokens (administrators).",
)


@user_command.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.", show_default=False)],
    admin: Annotated[bool, typer.Option("--admin", help="Make an administrator of them.")] = False,
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="user, manager (of their accounts), operator or admin.")
    ] = "user",
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Add a user, and print the token, which is not shown again."""
    from carrel.cli.screen import paint, print_json

    with open_client(home) as client:
        made, url = client.add_user(name, "admin" if admin else role), client.url
    if as_json:
        print_json(made)
        return OK
    print(f"Added {made.user.name} ({made.user.role}). Give them these two lines; the token is not shown again:")
    print(f"  export CARREL_URL={url}")
    print(f"  export CARREL_TOKEN={made.token}")
    if made.user.subject != made.user.name:
        print(paint(f"  their subject, for `carrel user revoke`: {made.user.subject}", "dim"))
    return OK


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
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="As `carrel user list` shows it.", show_default=False)],
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
