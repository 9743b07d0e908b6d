"""Passwords, as hashes."""

from __future__ import annotations

import sqlalchemy as sa

from carrel.core.domain.user import UserState
from carrel.lab.store.database import Database
from carrel.lab.store.identities import unlink
from carrel.lab.store.sign_in_tables import passwords, tokens
from carrel.lab.store.tables import users


class CredentialTable:
    """Passwords, as hashes. Each method is one transaction.

    What stores something asks in that transaction whether the token by which it was asked for is still valid, and its owner
    still a user: a reset or a removal in between wins. They return False then, and nothing has changed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def password(self, subject: str) -> str | None:
        """The hash of the user's password, or None."""
        with self._database.read() as connection:
            return connection.execute(sa.select(passwords.c.hash).where(passwords.c.subject == subject)).scalar()

    def redeem(self, token_id: int, subject: str, *, hash: str, now: float) -> bool:
        """Revoke an invitation and store the password that was chosen with it, in the place of an earlier one."""
        with self._database.write() as connection:
            if not _still(connection, token_id, subject, now):
                return False
            connection.execute(sa.update(tokens).where(tokens.c.id == token_id).values(revoked_at=now, revoked_by=subject))
            connection.execute(sa.delete(passwords).where(passwords.c.subject == subject))
            connection.execute(sa.insert(passwords), {"subject": subject, "hash": hash, "changed_at": now})
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


def forget_credentials(connection: sa.Connection, subject: str) -> None:
    """Part of a transaction: the user has neither password nor a link to the sign-in provider from now on."""
    # Who stores one holds this row as well (PostgreSQL; SQLite has one writer): nothing comes in between.
    connection.execute(sa.select(users.c.state).where(users.c.subject == subject).with_for_update())
    connection.execute(sa.delete(passwords).where(passwords.c.subject == subject))
    unlink(connection, subject)


def _still(connection: sa.Connection, token_id: int, subject: str, now: float) -> bool:
    """Whether the user is one, and the token good, now and until this transaction ends."""
    state = connection.execute(sa.select(users.c.state).where(users.c.subject == subject).with_for_update()).scalar()
    token = sa.select(tokens.c.expires_at).where(tokens.c.id == token_id, tokens.c.user == subject, tokens.c.revoked_at.is_(None))
    row = connection.execute(token.with_for_update()).first()
    return state == UserState.ACTIVE and row is not None and (row.expires_at is None or now < row.expires_at)
