"""`carrel secret`: passwords and keys that one's jobs need, kept by the lab and shown to nobody."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, open_client
from carrel.core.domain.errors import Invalid

secret_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Keep passwords and keys for one's own jobs, which get them in environment variables.",
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The environment variable, such as WANDB_API_KEY.", show_default=False)]


@secret_command.command("set")
def set_secret(
    name: Name,
    file: Annotated[Path | None, typer.Option("--from", metavar="FILE", help="Read the value from a file.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Keep a value: it is asked for, or read from the standard input where that is no terminal.

    It cannot be given as an argument: everybody on a machine sees those. A newline at its end does not count.
    """
    from carrel.cli.screen import print_json
    from carrel.core.domain.secret import check_secret_name, check_secret_value

    check_secret_name(name)
    value = _value(name, file)
    check_secret_value(value)
    with open_client(home) as client:
        created = client.set_secret(name, value)
    if as_json:
        print_json({"name": name, "created": created})
        return OK
    print(f"{name} is {'kept' if created else 'replaced'}. A task gets it with `carrel run --secret {name} ...`")
    if len(value) < 8:
        print("It has fewer than 8 characters: it is not starred out in logs.", file=sys.stderr)
    return OK


@secret_command.command("list")
def list_secrets(home: Home = None, as_json: AsJson = False) -> int:
    """List one's secrets by name; values are shown to nobody."""
    from carrel.cli.screen import print_json, print_table
    from carrel.cli.words import local

    with open_client(home) as client:
        found = client.secrets()
    if as_json:
        print_json({"secrets": [one.model_dump(mode="json") for one in found]})
        return OK
    rows = [(one.name, local(one.set_at), local(one.used_at) if one.used_at else "never") for one in found]
    print_table(("NAME", "SET", "LAST USED"), rows)
    return OK


@secret_command.command("remove")
def remove(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Forget a secret. Jobs that run keep it; jobs that wait for it fail when they start."""
    from carrel.cli.screen import print_json

    with open_client(home) as client:
        client.remove_secret(name)
    if as_json:
        print_json({"removed": name})
    else:
        print(f"{name} is forgotten.")
    return OK


def _value(name: str, file: Path | None) -> str:
    try:
        if file is not None:
            text = file.read_text()
        elif sys.stdin.isatty():
            text = typer.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=False, err=True)
        else:
            text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise Invalid("The value is not text (UTF-8).", remedy="Encode it, for example with base64.") from error
    except OSError as error:
        raise Invalid(f"{error.filename or 'The value'} could not be read: {error.strerror}.") from error
    return text.removesuffix("\n").removesuffix("\r")
