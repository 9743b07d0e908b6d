"""The lab's issuer, put together."""

from __future__ import annotations

from carrel.core.control.lab import Lab
from carrel.lab.signin import Issuer
from carrel.lab.store import Store


def issuer_of(lab: Lab, store: Store) -> Issuer:
    """The issuer of a lab: it makes tokens of the lab's own people, in the lab's own store."""
    return Issuer(store=store.sign_ins, tokens=lab.tokens, find_user=lab.people.get, clock=lab.clock, secret=lab.secret)
