"""`carrel login` and `carrel logout`: the token that this command line keeps."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson

Url = Annotated[
    str | None, typer.Argument(metavar="[URL]", help="The lab's address.  [CARREL_URL, or the last one]", show_default=False)
]


def login_command(
    url: Url = None,
    invitation: Annotated[
        str | None, typer.Option("--invitation", metavar="CODE", help="A code that an administrator gave you; it works once.")
    ] = None,
    trusted: Annotated[
        str | None,
        typer.Option("--trust", metavar="FINGERPRINT", help="Believe the lab's own authority if it has this fingerprint."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Sign in to a lab: keep a token for its address, from an invitation or as it is typed (or piped) in."""
    import socket

    from carrel.cli.screen import print_json
    from carrel.client import Client
    from carrel.client.stored_tokens import keep

    address = _address(url)
    if trusted is not None:
        from carrel.client.trust import trust

        trust(address, trusted)
    given = invitation or _typed(address)
    with Client(address, given) as client:
        token = client.redeem_invitation(f"{socket.gethostname()}, by invitation").token if invitation else given
    with Client(address, token) as client:
        who, address = client.lab().caller, client.url
    where = keep(address, token, os.environ)
    if as_json:
        print_json({"url": address, "user": who.subject, "kept": where})
        return OK
    print(f"Signed in to {address} as {who.name}. The token is in {where}.")
    return OK


def logout_command(url: Url = None, as_json: AsJson = False) -> int:
    """Revoke the token that is kept for a lab, and forget it."""
    from carrel.cli.screen import print_json
    from carrel.client import Client
    from carrel.client.locate import kept_token
    from carrel.client.stored_tokens import forget
    from carrel.domain.errors import Conflict, Unauthenticated, Unavailable

    address = _address(url)
    token = kept_token(address, os.environ)
    if token is None:
        raise Conflict(f"No token is kept for {address}.", remedy="One in CARREL_TOKEN is not kept: unset it.")
    revoked = True
    try:
        with Client(address, token) as client:
            client.revoke_token()
    except Unauthenticated:
        pass  # it is void already
    except Unavailable as error:
        revoked = False
        print(f"warning: the token could not be revoked, only forgotten. {error}", file=sys.stderr)
    forget(address, os.environ)
    if as_json:
        print_json({"url": address, "revoked": revoked})
    else:
        print(f"Signed out of {address}.")
    return OK


def _address(url: str | None) -> str:
    from carrel.client.locate import check_address
    from carrel.client.stored_tokens import usual_lab
    from carrel.domain.errors import Invalid

    found = url or os.environ.get("CARREL_URL") or usual_lab(os.environ)
    if not found:
        raise Invalid("Which lab?", remedy="Name its address: `carrel login https://lab.example.org`.")
    return check_address(found)


def _typed(address: str) -> str:
    import getpass

    from carrel.domain.errors import Unauthenticated

    # Not an argument: those can be read by every user of a machine.
    token = getpass.getpass(f"Token for {address}: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not token.strip():
        raise Unauthenticated(
            "There is no token.",
            remedy="Type or pipe one in; with an invitation: `carrel login URL --invitation CODE`.",
        )
    return token.strip()
