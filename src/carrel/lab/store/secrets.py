"""Secrets of users, sealed: who reads the database, or a copy of it, does not read them.

Each value is sealed by AES-256-GCM (NIST SP 800-38D) under a key that is derived from the lab's own secret (HKDF, RFC 5869), with
its owner and its name as associated data: a row that is moved to another user, or to another name, does not open.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from carrel.core.domain.errors import Conflict
from carrel.core.domain.secret import MOST_SECRETS, Secret
from carrel.lab.store.database import Database
from carrel.lab.store.tables import secrets

_NONCE = 12


class SecretTable:
    """Implements `carrel.core.control.secrets.SecretStore`."""

    def __init__(self, database: Database, key: bytes) -> None:
        """`key` is the lab's secret."""
        self._database = database
        self._key = key

    def put(self, subject: str, name: str, value: str, *, now: float) -> bool:
        """Keep a value in the place of an earlier one; return whether it is new. Raises `Conflict` for too many."""
        sealed = self._seal(subject, name, value)
        mine = secrets.c.subject == subject
        with self._database.write() as connection:
            kept = {"sealed": sealed, "set_at": now, "used_at": None}
            changed = connection.execute(sa.update(secrets).where(mine, secrets.c.name == name).values(**kept)).rowcount
            if changed:
                return False
            count = connection.execute(sa.select(sa.func.count()).select_from(secrets).where(mine)).scalar() or 0
            if count >= MOST_SECRETS:
                raise Conflict(f"You have {count} secrets, and nobody may have more.", remedy="`carrel secret remove` one.")
            connection.execute(sa.insert(secrets), {"subject": subject, "name": name, **kept})
        return True

    def list(self, subject: str) -> Sequence[Secret]:
        """What the user has, by name."""
        query = sa.select(secrets.c.name, secrets.c.set_at, secrets.c.used_at).where(secrets.c.subject == subject)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(secrets.c.name)).all()
        return [Secret(name=row.name, set_at=row.set_at, used_at=row.used_at) for row in rows]

    def open(self, subject: str, names: Sequence[str], *, now: float) -> Mapping[str, str]:
        """The values of those of `names` that the user has, and remember that they were used. Raises `Conflict`."""
        which = (secrets.c.subject == subject) & secrets.c.name.in_(names)
        with self._database.write() as connection:
            rows = connection.execute(sa.select(secrets.c.name, secrets.c.sealed).where(which)).all()
            connection.execute(sa.update(secrets).where(which).values(used_at=now))
        return {row.name: self._unseal(subject, row.name, row.sealed) for row in rows}

    def remove(self, subject: str, name: str) -> bool:
        """Forget a value; return whether there was one."""
        change = sa.delete(secrets).where(secrets.c.subject == subject, secrets.c.name == name)
        with self._database.write() as connection:
            return bool(connection.execute(change).rowcount)

    def _seal(self, subject: str, name: str, value: str) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE)
        return nonce + AESGCM(self._derived()).encrypt(nonce, value.encode(errors="surrogatepass"), _about(subject, name))

    def _unseal(self, subject: str, name: str, sealed: bytes) -> str:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            opened = AESGCM(self._derived()).decrypt(sealed[:_NONCE], sealed[_NONCE:], _about(subject, name))
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
