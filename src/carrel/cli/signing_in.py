"""How `carrel login` gets its tokens: with a code for any browser, and by opening that of this machine."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from carrel.cli.screen import clean
from carrel.client import issuer
from carrel.client.locate import default_home, trusted
from carrel.client.transport import explained, open_http

if TYPE_CHECKING:
    import webbrowser

    import httpx

    from carrel.client.credential import Credential

#: Seconds for an answer.
_PATIENCE = 60.0


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
