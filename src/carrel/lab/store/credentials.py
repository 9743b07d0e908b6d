"""Passwords, as hashes, and passkeys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from carrel.core.domain.errors import Conflict
from carrel.core.domain.user import UserState
from carrel.lab.credentials.port import NewPasskey, Passkey
from carrel.lab.store.database import Database
from carrel.lab.store.identities import unlink
from carrel.lab.store.sign_in_tables import passkeys, passwords, tokens
from carrel.lab.store.tables import users

#: Passkeys that one user may have.
MOST_PASSKEYS = 20


class CredentialTable:
    """Implements `carrel.lab.credentials.port.CredentialStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def password(self, subject: str) -> str | None:
        """The hash of the user's password, or None."""
        with self._database.read() as connection:
            return connection.execute(sa.select(passwords.c.hash).where(passwords.c.subject == subject)).scalar()

    def redeem(self, token_id: int, subject: str, *, hash: str | None, passkey: NewPasskey | None, now: float) -> bool:
        """Revoke an invitation and store what was chosen with it."""
        with self._database.write() as connection:
            if not _still(connection, token_id, subject, now):
                return False
            connection.execute(sa.update(tokens).where(tokens.c.id == token_id).values(revoked_at=now, revoked_by=subject))
            if hash is not None:
                connection.execute(sa.delete(passwords).where(passwords.c.subject == subject))
                connection.execute(sa.insert(passwords), {"subject": subject, "hash": hash, "changed_at": now})
            if passkey is not None:
                _add(connection, subject, passkey, now)
        return True

    def change_password(self, token_id: int, subject: str, *, old: str | None, new: str | None, now: float) -> bool:
        """Put one hash in the place of another; None stands for no password."""
        with self._database.write() as connection:
            if not _still(connection, token_id, subject, now):
                return False
            known = connection.execute(sa.select(passwords.c.hash).where(passwords.c.subject == subject)).scalar()
            if known != old:
                return False
            connection.execute(sa.delete(passwords).where(passwords.c.subject == subject))
            if new is not None:
                connection.execute(sa.insert(passwords), {"subject": subject, "hash": new, "changed_at": now})
        return True

    def rehash(self, subject: str, *, old: str, new: str) -> bool:
        """The same password under better parameters, unless it was changed meanwhile."""
        same = (passwords.c.subject == subject) & (passwords.c.hash == old)
        with self._database.write() as connection:
            return bool(connection.execute(sa.update(passwords).where(same).values(hash=new)).rowcount)

    def passkeys(self, subject: str) -> Sequence[Passkey]:
        """The passkeys of a user, the oldest first."""
        query = sa.select(passkeys).where(passkeys.c.subject == subject).order_by(passkeys.c.id)
        with self._database.read() as connection:
            return [_passkey(row) for row in connection.execute(query)]

    def passkey(self, credential: bytes) -> Passkey | None:
        """The passkey with this credential id, or None."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(passkeys).where(passkeys.c.credential == credential)).first()
        return None if row is None else _passkey(row)

    def add_passkey(self, token_id: int, subject: str, new: NewPasskey, *, now: float) -> bool:
        """Remember a passkey. Raises `Conflict` when the lab knows it, or for too many."""
        with self._database.write() as connection:
            if not _still(connection, token_id, subject, now):
                return False
            _add(connection, subject, new, now)
        return True

    def remove_passkey(self, subject: str, number: int) -> bool:
        """Forget a passkey; return whether there was one."""
        change = sa.delete(passkeys).where(passkeys.c.subject == subject, passkeys.c.id == number)
        with self._database.write() as connection:
            return bool(connection.execute(change).rowcount)

    def used_passkey(self, known: Passkey, *, sign_count: int, now: float) -> bool:
        """Note a use, and the authenticator's new counter, unless the counter has changed since `known` was read."""
        same = (passkeys.c.id == known.id) & (passkeys.c.sign_count == known.sign_count)
        change = sa.update(passkeys).where(same).values(sign_count=sign_count, last_used_at=now)
        with self._database.write() as connection:
            return bool(connection.execute(change).rowcount)


def forget_credentials(connection: sa.Connection, subject: str) -> None:
    """Part of a transaction: the user has neither password nor passkey nor a link to the sign-in provider from now on."""
    # Who stores one holds this row as well (PostgreSQL; SQLite has one writer): nothing comes in between.
    connection.execute(sa.select(users.c.state).where(users.c.subject == subject).with_for_update())
    connection.execute(sa.delete(passwords).where(passwords.c.subject == subject))
    connection.execute(sa.delete(passkeys).where(passkeys.c.subject == subject))
    unlink(connection, subject)


def _still(connection: sa.Connection, token_id: int, subject: str, now: float) -> bool:
    """Whether the user is one, and the token good, now and until this transaction ends."""
    state = connection.execute(sa.select(users.c.state).where(users.c.subject == subject).with_for_update()).scalar()
    token = sa.select(tokens.c.expires_at).where(tokens.c.id == token_id, tokens.c.user == subject, tokens.c.revoked_at.is_(None))
    row = connection.execute(token.with_for_update()).first()
    return state == UserState.ACTIVE and row is not None and (row.expires_at is None or now < row.expires_at)


def _add(connection: sa.Connection, subject: str, new: NewPasskey, now: float) -> None:
    if connection.execute(sa.select(passkeys.c.id).where(passkeys.c.credential == new.credential)).first() is not None:
        raise Conflict("This passkey is registered already.", remedy="Use it to sign in.")
    count = connection.execute(sa.select(sa.func.count()).select_from(passkeys).where(passkeys.c.subject == subject)).scalar()
    if (count or 0) >= MOST_PASSKEYS:
        raise Conflict(f"You have {count} passkeys, and nobody may have more.", remedy="Remove one first.")
    row = {
        "subject": subject,
        "credential": new.credential,
        "public_key": new.public_key,
        "sign_count": new.sign_count,
        "name": new.name,
        "created_at": now,
    }
    connection.execute(sa.insert(passkeys), row)


def _passkey(row: Row[Any]) -> Passkey:
    return Passkey(**row._mapping)
