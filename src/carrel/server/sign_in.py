"""The ways of signing in that a lab offers."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from carrel.control.lab import Lab
from carrel.credentials import LocalSignIn
from carrel.credentials.passkeys import Party, Passkeys
from carrel.portal.local import LocalPages
from carrel.server.network import loopback
from carrel.store import Store


def local_pages(store: Store, lab: Lab, url: str, public_url: str | None) -> LocalPages:
    """Sign-in by what the lab itself knows of people. `url` is where it is, `public_url` what people are told."""
    local = LocalSignIn(store=store.credentials, people=lab.people, tokens=lab.tokens, clock=time.time, monotonic=time.monotonic)
    party = party_of(public_url or url)
    return LocalPages(local, Passkeys(local=local, party=lambda: party, key=lab.secret))


def party_of(url: str) -> Party | None:
    """What passkeys of a lab at this address are for; None where browsers allow none.

    They want a secure context: https with a name, or localhost (Secure Contexts, 3.1), by which a lab on a loopback address is
    reached, too.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = f":{parts.port}" if parts.port is not None else ""
    if loopback(host):
        return Party("localhost", f"{parts.scheme}://localhost{port}")
    if parts.scheme != "https" or not host or ":" in host or host.replace(".", "").isdigit():
        return None
    default = port == ":443"
    return Party(host, f"https://{host}{'' if default else port}")
