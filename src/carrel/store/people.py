"""Users, their tokens, and whose code is whose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row
from sqlalchemy.exc import IntegrityError

from carrel.domain.errors import Conflict
from carrel.domain.user import Role, User
from carrel.store.database import Database
from carrel.store.tables import snapshots, tokens, users


class UserTable:
    """Implements `carrel.control.ports.UserStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, user: User, *, now: float) -> None:
        """Add a user; raises `Conflict` when the subject exists."""
        row = {"subject": user.subject, "name": user.name, "role": user.role.value, "account": user.account, "created_at": now}
        try:
            with self._database.write() as connection:
                connection.execute(sa.insert(users), row)
        except IntegrityError as error:
            raise Conflict(f'The user "{user.subject}" exists already.', remedy="Choose another name.") from error

    def get(self, subject: str) -> User | None:
        """The user, or None."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(users).where(users.c.subject == subject)).first()
        return None if row is None else _user_of(row)

    def list(self) -> Sequence[User]:
        """All users by subject."""
        with self._database.read() as connection:
            return [_user_of(row) for row in connection.execute(sa.select(users).order_by(users.c.subject))]

    def add_token(self, digest: str, subject: str, *, now: float) -> None:
        """Remember a token by its digest."""
        with self._database.write() as connection:
            connection.execute(sa.insert(tokens), {"digest": digest, "subject": subject, "created_at": now})

    def by_token(self, digest: str) -> User | None:
        """Whose valid token it is, or None."""
        query = sa.select(users).join(tokens).where(tokens.c.digest == digest, tokens.c.revoked_at.is_(None))
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else _user_of(row)

    def revoke_tokens(self, subject: str, *, now: float) -> int:
        """No token of the user is valid any more; returns how many were."""
        change = sa.update(tokens).where(tokens.c.subject == subject, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
        with self._database.write() as connection:
            return connection.execute(change).rowcount

    def may_use_snapshot(self, subject: str, digest: str) -> bool:
        """True when the user has uploaded this code."""
        query = sa.select(snapshots.c.digest).where(snapshots.c.digest == digest, snapshots.c.subject == subject)
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

    def add_snapshot(self, subject: str, digest: str, *, now: float, size: int = 0) -> None:
        """Remember that the user has uploaded this code, with its bytes on the disk; once is enough."""
        with self._database.write() as connection:
            query = sa.select(snapshots.c.digest).where(snapshots.c.digest == digest, snapshots.c.subject == subject)
            if connection.execute(query).first() is None:
                connection.execute(sa.insert(snapshots), {"digest": digest, "subject": subject, "created_at": now, "size": size})


def _user_of(row: Row[Any]) -> User:
    return User(subject=row.subject, name=row.name, role=Role(row.role), account=row.account)
