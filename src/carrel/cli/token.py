"""`carrel token`: access tokens of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Expires, Home, argument, flag, lifetime, open_client, option
from carrel.cli.screen import print_json, print_table
from carrel.cli.words import ago, local, now, until
from carrel.core.domain.errors import Conflict

if TYPE_CHECKING:
    from pathlib import Path

    from carrel.core.domain.token import Token

#: Seconds for which the token of a shell holds: a day's work.
_SHELL = 12 * 3600

token_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Make, list and revoke access tokens; `export $(carrel token --env)` lets plain MLflow clients in.",
)

Scopes = Annotated[list[str] | None, option("--scope", "SCOPE", "read, submit, sessions, tracking or all; may be repeated.")]


@token_command.callback()
def token(
    ctx: typer.Context,
    env: Annotated[bool, flag("--env", "Make a token for this shell and print variables for `export`.")] = False,
    scopes: Scopes = None,
    expires: Expires = None,
    home: Home = None,
) -> None:
    """Make, list and revoke access tokens; `export $(carrel token --env)` lets plain MLflow clients in."""
    if ctx.invoked_subcommand is not None:
        return
    if not env:
        typer.echo(ctx.get_help())
        return
    _print_variables(["tracking", *(one for one in scopes or () if one != "tracking")], lifetime(expires), home)


def _print_variables(scopes: list[str], seconds: int | None, home: Path | None) -> None:
    import socket

    with open_client(home) as client:
        made = client.create_token(
            f"a shell on {socket.gethostname()}", scopes=scopes, expires_in=_SHELL if seconds is None else seconds
        )
        url, tracking, authority = client.url, made.tracking_url, client.authority
    if tracking is None and scopes == ["tracking"]:
        raise Conflict("This lab runs without tracking.", remedy="An administrator sets tracking = true in carrel.toml.")
    variables = {"CARREL_URL": url}
    if tracking is not None:
        variables |= {"MLFLOW_TRACKING_URI": tracking, "MLFLOW_TRACKING_TOKEN": made.token}
    if set(scopes) - {"tracking"}:
        # One for tracking alone would stand in the way of the token that this command line has.
        variables["CARREL_TOKEN"] = made.token
    if authority is not None:
        variables["CARREL_CA_FILE"] = str(authority)
        if tracking is not None:
            variables["MLFLOW_TRACKING_SERVER_CERT_PATH"] = str(authority)
    print(" ".join(f"{name}={value}" for name, value in variables.items()))


@token_command.command("create")
def create(
    name: Annotated[str, argument("[NAME]", "What it is called in lists.")] = "",
    scopes: Scopes = None,
    account: Annotated[str | None, option("--account", "ACCOUNT", "The only account that its jobs are charged to.")] = None,
    expires: Expires = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Make a token, and print it; it is not shown again."""
    import sys

    from carrel.wire.v1 import show

    with open_client(home) as client:
        made = client.create_token(name, scopes=scopes or (), account=account, expires_in=lifetime(expires))
    if as_json:
        return print_json(show(made))
    about = made.about
    # On standard error, so that the token alone can be put into a file.
    print(f"Token {about.id} ({', '.join(about.scopes)}), {until(about.expires_at)}. It is not shown again:", file=sys.stderr)
    print(made.token)
    return OK


@token_command.command("list")
def list_tokens(
    everybody: Annotated[bool, flag("--users", "Of all users (administrators).")] = False,
    void: Annotated[bool, flag("--all -a", "Also those that have expired or were revoked.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """List tokens: what they are good for, until when, and when they were used last."""
    from carrel.cli.nouns import print_records

    with open_client(home) as client:
        found = [one for one in client.tokens(everybody=everybody) if void or one.state == "valid"]
    if as_json:
        print_records("tokens", found)
        return OK
    moment = now()

    def row(one: Token) -> tuple[str, ...]:
        end = one.state if one.state != "valid" else local(one.expires_at) if one.expires_at else "no end"
        used = ago(one.last_used_at, moment) if one.last_used_at else "never"
        return (str(one.id), one.user, one.name, ",".join(one.scopes), one.account or "", end, used)

    print_table(("ID", "USER", "NAME", "SCOPE", "ACCOUNT", "UNTIL", "LAST USE"), [row(one) for one in found])
    return OK


@token_command.command("revoke")
def revoke(
    token_id: Annotated[int, argument("ID", "As `carrel token list` shows it.", min=1)],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """End a token at once."""
    with open_client(home) as client:
        client.revoke_token(token_id)
    if as_json:
        return print_json({"revoked": token_id})
    print(f"Token {token_id} is not valid any more.")
    return OK
