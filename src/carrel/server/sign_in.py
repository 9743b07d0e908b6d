"""The ways of signing in that a lab offers."""

from __future__ import annotations

import time

from carrel.control.lab import Lab
from carrel.credentials import LocalSignIn
from carrel.portal.local import LocalPages
from carrel.store import Store


def local_pages(store: Store, lab: Lab) -> LocalPages:
    """Sign-in by what the lab itself knows of people."""
    local = LocalSignIn(store=store.credentials, people=lab.people, tokens=lab.tokens, clock=time.time, monotonic=time.monotonic)
    return LocalPages(local)
