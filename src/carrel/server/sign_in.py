"""The ways of signing in that a lab offers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from ctypes.util import find_library
from urllib.parse import urlsplit

from carrel.control.lab import Lab
from carrel.credentials import LocalSignIn
from carrel.credentials.pam import PamService, PamSignIn
from carrel.credentials.passkeys import Party, Passkeys
from carrel.portal import Portal
from carrel.portal.local import LocalPages
from carrel.portal.pam import PamPage
from carrel.server.network import loopback
from carrel.server.settings import Settings
from carrel.server.sign_in_settings import PamSettings, SignInSettings
from carrel.store import Store


def portal_of(store: Store, lab: Lab, url: str, settings: Settings) -> Portal:
    """The pages, with every way of signing in that there is. `url` is where the lab is."""
    local = LocalSignIn(store=store.credentials, people=lab.people, tokens=lab.tokens, clock=time.time, monotonic=time.monotonic)
    party = party_of(settings.public_url or url)
    pages = LocalPages(local, Passkeys(local=local, party=lambda: party, key=lab.secret))
    return Portal(clock=time.time, ways=[*_pam(settings.sign_in, local, lab)], local=pages)


def _pam(settings: SignInSettings, local: LocalSignIn, lab: Lab) -> Iterator[PamPage]:
    if settings.pam is None:
        return
    service = PamService(service=settings.pam.service, directory=settings.pam.directory)
    enroll = lab.users.enroll if settings.pam.admit == "everybody" else None
    yield PamPage(PamSignIn(pam=service, people=lab.people, local=local, enroll=enroll))


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


def describe(settings: Settings, address: str | None) -> tuple[str, str, str]:
    """For `carrel doctor`: "ok", "warn" or "fail"; by what people sign in; and a remedy. `address`: where the lab was last."""
    party = party_of(settings.public_url or address or "http://127.0.0.1")
    ways = ["one-time link", "access token", "invitation", "password"]
    if party is not None:
        ways.append(f"passkey (at {party.origin})")
    pam: PamSettings | None = settings.sign_in.pam
    if pam is not None:
        who = "users of the lab" if pam.admit == "known" else "everybody with an account"
        ways.append(f'account on this machine (PAM service "{pam.service}", {who})')
    said = f"People sign in by {', '.join(ways)}."
    if pam is not None and find_library("pam") is None:
        return "fail", f"{said} But libpam is not here.", "Install it (Debian: libpam0g), or leave [sign_in.pam] out."
    if pam is not None and os.geteuid() != 0:
        return (
            "warn",
            f"{said} Without root's rights pam_unix knows the password of the lab's own Unix user alone.",
            "Modules that ask a service (pam_sss, pam_krb5) know everybody's; else use another way.",
        )
    if party is None:
        return "ok", f"{said} Not by passkeys.", "They want https and a name: public_url."
    return "ok", said, ""
