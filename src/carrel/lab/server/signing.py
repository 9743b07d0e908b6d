"""The lab's own key: what it orders is known by it. The key is made once, lies in the home (mode 0600), and goes nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from carrel.core.spool.seal import SignedOrder, order_of
from carrel.lab.server.home import LabHome


class LabKey:
    """Signs. Thread-safe."""

    def __init__(self, home: LabHome, *, following: bool = False) -> None:
        """Read the key of the lab in `home`, or make it; with `following`, the one that is to take its place.

        Raises `Denied` where others can read it.
        """
        read = home.next_signing_key if following else home.signing_key
        self._key = Ed25519PrivateKey.from_private_bytes(read(lambda: Ed25519PrivateKey.generate().private_bytes_raw()))
        #: What the lab is known by: public (hexadecimal).
        self.public = self._key.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> str:
        """Return the signature of `message`, hexadecimal."""
        return self._key.sign(message).hex()

    def order(self, user: str, launch: Mapping[str, Any]) -> SignedOrder:
        """Return the order to the Unix user ("": the lab's own) to run this launch, as JSON has it."""
        return SignedOrder(user=user, launch=launch, signature=self.sign(order_of(user, launch)))
