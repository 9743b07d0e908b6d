"""Secrets of users, sealed: who reads the database, or a copy of it, does not read them.

Each value is sealed by AES-256-GCM (NIST SP 800-38D) under a key that is derived from the lab's own secret (HKDF, RFC 5869), with
its owner and its name as associated data: a row that is moved to another user, or to another name, does not open.
"""

from __future__ import annotations

import base64
import os

from carrel.core.domain.errors import Conflict

_NONCE = 12


class LabSeal:
    """Implements `carrel.core.control.secrets.Seal`."""

    def __init__(self, key: bytes) -> None:
        """`key` is the lab's secret."""
        self._key = key

    def seal(self, subject: str, name: str, value: str) -> str:
        """The value, sealed."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE)
        sealed = AESGCM(self._derived()).encrypt(nonce, value.encode(errors="surrogatepass"), _about(subject, name))
        return base64.b64encode(nonce + sealed).decode()

    def unseal(self, subject: str, name: str, sealed: str) -> str:
        """The value. Raises `Conflict` for one that was sealed with another key, or as another secret."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        content = base64.b64decode(sealed)
        try:
            opened = AESGCM(self._derived()).decrypt(content[:_NONCE], content[_NONCE:], _about(subject, name))
        except InvalidTag:
            raise Conflict(
                f"The secret {name} cannot be read: the lab's key is not the one that it was sealed with.",
                remedy=f"Set it again: `carrel secret set {name}`.",
            ) from None
        return opened.decode(errors="surrogatepass")

    def _derived(self) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return HKDF(SHA256(), 32, salt=None, info=b"carrel secrets of users").derive(self._key)


def _about(subject: str, name: str) -> bytes:
    return f"{subject}\0{name}".encode()
