"""`carrel login` and `carrel logout`: the sign-in that this command line keeps."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, argument, flag, option
from carrel.cli.screen import clean, print_json
from carrel.client import issuer
from carrel.client.locate import default_home, trusted
from carrel.client.transport import explained, open_http
from carrel.core.domain.errors import CarrelError, Conflict, Invalid, Unauthenticated, Unavailable

if TYPE_CHECKING:
    import webbrowser

    import httpx

    from carrel.client.credential import Credential

#: Seconds for an answer.
_PATIENCE = 60.0
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


class _Lab:
    """A lab on which nobody is signed in yet."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url = url
        self._http = http

    def post(self, path: str, form: Mapping[str, str]) -> httpx.Response:
        with explained(self.url):
            return self._http.post(path, data=dict(form))


def sign_in(url: str) -> Credential:
    """Tokens for the lab, once somebody has approved this program on the lab's page (RFC 8628)."""
    with _open(url) as lab:
        waiting = issuer.begin(lab.post)
        _say(f"Open  {waiting.page}  in any browser and enter the code  {waiting.user_code}")
        if waiting.link != waiting.page:
            _say(f"(the same in one: {waiting.link})")
        browser = find_browser(os.environ)
        if browser is not None:
            _say("The page opens in the browser of this machine, too.")
            # Without the code: every user of the machine can read a browser's arguments. Some browsers end when they are closed,
            # and not before.
            threading.Thread(target=browser.open, args=(waiting.page,), daemon=True).start()
        _say(f"Waiting until you have approved it there, {waiting.expires_in / 60:.0f} minutes at most. Ctrl-C stops.")
        return issuer.wait(lab.post, waiting)


def end(url: str, credential: Credential) -> None:
    """End a sign-in at the lab."""
    with _open(url) as lab:
        issuer.revoke(lab.post, credential)


def find_browser(environment: Mapping[str, str]) -> webbrowser.BaseBrowser | None:
    """A browser with which somebody can be expected to sit before this machine; None where there is none.

    BROWSER names one, as for other programs. Without it a display is needed, and one that is not at the other end of ssh.
    """
    import webbrowser

    screen = environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY") or sys.platform == "darwin"
    if not environment.get("BROWSER") and (not screen or environment.get("SSH_CONNECTION")):
        return None
    try:
        return webbrowser.get()
    except webbrowser.Error:
        return None


@contextmanager
def _open(url: str) -> Iterator[_Lab]:
    with open_http(url, trusted(url, default_home(os.environ), os.environ), timeout=_PATIENCE) as http:
        yield _Lab(url, http)


def _say(text: str) -> None:
    # On standard error: what is on standard output is for programs.
    for line in text.splitlines():
        print(clean(line), file=sys.stderr, flush=True)
