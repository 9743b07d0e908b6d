"""How `carrel login` gets its tokens: through the browser of this machine, or with a code for the browser of another."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from carrel.client import issuer
from carrel.client.locate import default_home, trusted
from carrel.client.loopback import Loopback
from carrel.client.transport import explained, open_http
from carrel.core.domain.errors import Unauthenticated

if TYPE_CHECKING:
    import webbrowser

    import httpx

    from carrel.client.credential import Credential

#: Seconds for an answer.
_PATIENCE = 60.0
#: Seconds for somebody to sign in with a browser, and approve.
_LOOK = 600.0


class _Lab:
    """A lab on which nobody is signed in yet."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url = url
        self._http = http

    def get(self, path: str) -> httpx.Response:
        with explained(self.url):
            return self._http.get(path)

    def post(self, path: str, form: Mapping[str, str]) -> httpx.Response:
        with explained(self.url):
            return self._http.post(path, data=dict(form))


def sign_in(url: str, *, device: bool) -> Credential | None:
    """Tokens for the lab, once somebody has approved this program; None for a lab that has no issuer."""
    with _open(url) as lab:
        name = issuer.issuer_of(lab.get)
        if name is None:
            return None
        browser = None if device else find_browser(os.environ)
        return _by_code(lab, name, browser) if browser is not None else _by_device(lab)


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


def _by_code(lab: _Lab, name: str, browser: webbrowser.BaseBrowser) -> Credential:
    with Loopback(name) as loopback:
        asking = issuer.Asking.new(loopback.redirect_uri)
        loopback.expect(asking.state)
        _say("Opening a page of the lab's in a browser. Waiting until you have approved `carrel login` there; Ctrl-C stops.")
        _say(f"(no browser? `carrel login {lab.url} --device`)")

        def open_page() -> None:
            if not browser.open(asking.address(lab.url)):
                loopback.give_up()

        # Some browsers end when they are closed, and not before.
        threading.Thread(target=open_page, daemon=True).start()
        code = loopback.code(_LOOK)
    if code is not None:
        return issuer.exchange(lab.post, asking, code)
    if loopback.given_up:
        _say("The browser did not open.")
        return _by_device(lab)
    again = f"Try a code: `carrel login {lab.url} --device`."
    raise Unauthenticated(f"No browser came back within {_LOOK / 60:.0f} minutes.", remedy=again)


def _by_device(lab: _Lab) -> Credential:
    waiting = issuer.begin(lab.post)
    _say(f"Open  {waiting.page}  in any browser in which you are signed in to the lab, and enter the code  {waiting.user_code}")
    if waiting.link != waiting.page:
        _say(f"(the same in one: {waiting.link})")
    _say(f"Waiting until you have approved it there, {waiting.expires_in / 60:.0f} minutes at most. Ctrl-C stops.")
    return issuer.wait(lab.post, waiting)


def _say(text: str) -> None:
    from carrel.cli.screen import clean

    # On standard error: what is on standard output is for programs.
    for line in text.splitlines():
        print(clean(line), file=sys.stderr, flush=True)
