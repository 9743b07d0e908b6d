"""`carrel secret`: passwords and keys that one's jobs need, kept by the lab and shown to nobody."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.nouns import Removal, noun_command
from carrel.cli.options import AsJson, Home, argument, open_client, option
from carrel.cli.screen import print_json
from carrel.cli.words import local
from carrel.core.domain.errors import Invalid
from carrel.core.domain.nouns import SECRETS

_KEY = "The environment variable, such as WANDB_API_KEY."
secret_command = noun_command(
    SECRETS,
    about="Keep passwords and keys for one's own jobs, which get them in environment variables.",
    listed="List one's secrets by name; values are shown to nobody.",
    key=_KEY,
    columns={
        "NAME": lambda one: one.name,
        "SET": lambda one: local(one.set_at),
        "LAST USED": lambda one: local(one.used_at) or "never",
    },
    removal=Removal(
        name="remove",
        word="removed",
        help="Forget a secret. Jobs that run keep it; jobs that wait for it fail when they start.",
        done="{} is forgotten.",
    ),
)
Name = Annotated[str, argument("NAME", _KEY)]


@secret_command.command("set")
def set_secret(
    name: Name,
    file: Annotated[Path | None, option("--from", "FILE", "Read the value from a file.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Keep a value: it is asked for, or read from the standard input where that is no terminal.

    It cannot be given as an argument: everybody on a machine sees those. A newline at its end does not count.
    """
    from carrel.core.domain.secret import check_secret_name, check_secret_value

    check_secret_name(name)
    value = _value(name, file)
    check_secret_value(value)
    with open_client(home) as client:
        created = client.set_secret(name, value)
    if as_json:
        return print_json({"name": name, "created": created})
    print(f"{name} is {'kept' if created else 'replaced'}. A task gets it with `carrel run --secret {name} ...`")
    if len(value) < 8:
        print("It has fewer than 8 characters: it is not starred out in logs.", file=sys.stderr)
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
