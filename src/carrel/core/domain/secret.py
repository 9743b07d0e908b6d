"""Secrets of users: values that their jobs need, and that nobody reads in a record, a log or a listing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from carrel.core.domain.errors import Invalid
from carrel.core.domain.noun import Moment, given, private, stamped
from carrel.core.domain.units import format_size

#: Bytes of one value, and how many a user may have.
LONGEST_SECRET = 64 * 1024
MOST_SECRETS = 100

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
#: The lab's own variables.
_RESERVED = "CARREL_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret of a user. Its value goes in, and comes out for the job that was promised it; nobody else is shown it."""

    name: str
    subject: str = private(default="")
    value: str = given(default="")
    #: The value, so that who reads the database cannot read it (`carrel.lab.store.secrets`).
    sealed: str = private(default="")
    set_at: Moment = stamped(default=0.0)
    #: When a job was given it last; None: never since it was set.
    used_at: Moment | None = stamped(default=None)


def check_secret_name(name: str) -> None:
    """Raise `Invalid` for what cannot be the name of an environment variable of the user's."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            f'"{name[:80]}" cannot be the name of a secret.',
            remedy="It becomes an environment variable: use letters, digits and _, at most 128, and no digit first.",
        )
    if name.upper().startswith(_RESERVED):
        raise Invalid(f'"{name}" is a name of the lab\'s own.', remedy=f"Choose one that does not start with {_RESERVED}.")


def check_secret_value(value: str) -> None:
    """Raise `Invalid` for what cannot be the value of an environment variable. The message does not hold the value."""
    if not value:
        raise Invalid("The secret is empty.", remedy="Give a value, or remove the secret.")
    if "\0" in value:
        raise Invalid("The secret has a zero byte in it.", remedy="Encode it, for example with base64.")
    size = len(value.encode(errors="surrogatepass"))
    if size > LONGEST_SECRET:
        raise Invalid(
            f"The secret has {format_size(size)}.", remedy=f"At most {format_size(LONGEST_SECRET)}: put a file among the inputs."
        )
