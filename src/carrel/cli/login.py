"""`carrel login` and `carrel logout`: the sign-in that this command line keeps."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, argument, flag, option
from carrel.cli.screen import print_json
from carrel.core.domain.errors import CarrelError, Conflict, Invalid, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from carrel.client.credential import Credential

Url = Annotated[str | None, argument("[URL]", "The lab's address.  [CARREL_URL, or the last one]")]


def login_command(
    url: Url = None,
    typed: Annotated[bool, flag("--token", "Keep a token that is typed or piped in.")] = False,
    invitation: Annotated[
        str | None, option("--invitation", "CODE", "A code that an administrator gave you; it works once.")
    ] = None,
    trusted: Annotated[
        str | None, option("--trust", "FINGERPRINT", "Believe the lab's own authority if it has this fingerprint.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Sign in to a lab with a code that is entered in any browser, and stay so; or keep a token for it."""
    from carrel.client import Client

    address = _address(url)
    if trusted is not None:
        from carrel.client.trust import trust

        trust(address, trusted)
    if typed and invitation is not None:
        raise Invalid("--token and --invitation are two ways to sign in.", remedy="Leave one out.")
    credential = _redeemed(address, invitation) if invitation else _sign_in(address, typed=typed)
    with Client(address, credential.access_token) as client:
        who, address = client.lab().caller, client.url
    where = _keep(address, credential)
    if as_json:
        return print_json({"url": address, "user": who.subject, "kept": where})
    print(f"Signed in to {address} as {who.name}. The token is in {where}.")
    return OK


def logout_command(url: Url = None, as_json: AsJson = False) -> int:
    """End the sign-in that is kept for a lab, and forget it."""
    from carrel.client.locate import kept_credential
    from carrel.client.stored_tokens import alone, forget

    address = _address(url)
    revoked = True
    with alone(address, os.environ):  # none of our commands renews it meanwhile
        credential = kept_credential(address, os.environ)
        if credential is None:
            raise Conflict(f"No token is kept for {address}.", remedy="One in CARREL_TOKEN is not kept: unset it.")
        try:
            _revoke(address, credential)
        except Unauthenticated:
            pass  # it is void already
        except Unavailable as error:
            revoked = False
            print(f"warning: the token could not be revoked, only forgotten. {error}", file=sys.stderr)
        forget(address, os.environ)
    if as_json:
        return print_json({"url": address, "revoked": revoked})
    print(f"Signed out of {address}.")
    return OK


def _address(url: str | None) -> str:
    from carrel.client.locate import check_address
    from carrel.client.stored_tokens import usual_lab

    found = url or os.environ.get("CARREL_URL") or usual_lab(os.environ)
    if not found:
        raise Invalid("Which lab?", remedy="Name its address: `carrel login https://lab.example.org`.")
    return check_address(found)


def _sign_in(address: str, *, typed: bool) -> Credential:
    from carrel.cli.signing_in import sign_in
    from carrel.client.credential import Credential

    return Credential(access_token=_typed(address)) if typed else sign_in(address)


def _redeemed(address: str, invitation: str) -> Credential:
    import socket

    from carrel.client import Client
    from carrel.client.credential import Credential

    with Client(address, invitation) as client:
        return Credential(access_token=client.redeem_invitation(f"{socket.gethostname()}, by invitation").token)


def _keep(address: str, credential: Credential) -> str:
    """Keep it, and end the sign-in whose place it takes: nobody has that any more."""
    from carrel.client.locate import kept_credential
    from carrel.client.stored_tokens import alone, keep

    with alone(address, os.environ):
        try:
            before = kept_credential(address, os.environ)
        except CarrelError:
            before = None  # what cannot be read is replaced
        where = keep(address, credential.to_text(), os.environ)
        if before is not None and before.refresh_token is not None:
            try:
                _revoke(address, before)
            except CarrelError as error:
                print(f"warning: the sign-in of before could not be ended; it ends when it is not used. {error}", file=sys.stderr)
    return where


def _revoke(address: str, credential: Credential) -> None:
    if credential.refresh_token is not None:
        from carrel.cli.signing_in import end

        end(address, credential)
        return
    from carrel.client import Client

    with Client(address, credential.access_token) as client:
        client.revoke_token()


def _typed(address: str) -> str:
    import getpass

    # Not an argument: those can be read by every user of a machine.
    token = getpass.getpass(f"Token for {address}: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not token.strip():
        raise Unauthenticated(
            "There is no token.",
            remedy="Type or pipe one in; with an invitation: `carrel login URL --invitation CODE`.",
        )
    return token.strip()
