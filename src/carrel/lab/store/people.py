"""Users, and whose code is whose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row
from sqlalchemy.exc import IntegrityError

from carrel.core.domain.errors import Conflict
from carrel.core.domain.user import Role, User, UserState
from carrel.lab.store.credentials import forget_credentials
from carrel.lab.store.database import Database
from carrel.lab.store.known import Known
from carrel.lab.store.sign_in_tables import identities
from carrel.lab.store.tables import snapshots, users

#: What a `User` is made of.
USER = [column for column in users.c if column is not users.c.created_at]


class UserTable:
    """Implements `carrel.core.control.event_ports.UserStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: Known[str, User] = Known(database, users, most=1000)

    def add(self, user: User, *, now: float) -> None:
        """Add a user; raises `Conflict` when the subject exists."""
        row = {"subject": user.subject, "name": user.name, "role": user.role.value, "account": user.account, "created_at": now}
        try:
            with self._database.write() as connection:
                connection.execute(sa.insert(users), row)
        except IntegrityError as error:
            raise Conflict(
                f'The user "{user.subject}" exists already.',
                remedy=f"For a new token: `carrel user reset {user.subject}`. For somebody else, choose another name.",
            ) from error

    def get(self, subject: str) -> User | None:
        """The user, or None."""
        return self._known.read(subject, lambda: self._get(subject))

    def known(self, subject: str) -> User | None:
        """The same without the database; None where that is not enough."""
        return self._known.get(subject)

    def _get(self, subject: str) -> User | None:
        with self._database.read() as connection:
            row = connection.execute(sa.select(users).where(users.c.subject == subject)).first()
        return None if row is None else user_of(row)

    def list(self) -> Sequence[User]:
        """All users by subject, with whom they are at a sign-in provider."""
        query = sa.select(users, identities.c.issuer, identities.c.sub)
        query = query.join(identities, identities.c.subject == users.c.subject, isouter=True).order_by(users.c.subject)
        with self._database.read() as connection:
            return [
                replace(user_of(row), linked_to=f"{row.issuer} {row.sub}" if row.issuer else "")
                for row in connection.execute(query)
            ]

    def set_state(self, subject: str, state: UserState, *, reason: str, by: str, now: float) -> bool:
        """The user is in that state from now on. False, and nothing has changed, when no administrator would be left."""
        with self._database.write() as connection:
            if state is not UserState.ACTIVE:
                admins = sa.select(users.c.subject).where(users.c.role == Role.ADMIN, users.c.state == UserState.ACTIVE)
                if connection.execute(admins.limit(2)).scalars().all() == [subject]:
                    return False
            values = {"state": state.value, "state_reason": reason, "state_by": by, "state_since": now}
            connection.execute(sa.update(users).where(users.c.subject == subject).values(values))
            if state is UserState.REMOVED:  # an administrator who takes them back gives them a new token
                forget_credentials(connection, subject)
        return True

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


def user_of(row: Row[Any]) -> User:
    """The user of a row that has the columns `USER`."""
    found = row._mapping
    return User(
        subject=found[users.c.subject],
        name=found[users.c.name],
        role=Role(found[users.c.role]),
        account=found[users.c.account],
        member_of=frozenset(json.loads(found[users.c.member_of])),
        state=UserState(found[users.c.state]),
        state_reason=found[users.c.state_reason],
        state_by=found[users.c.state_by],
        state_since=found[users.c.state_since],
        revoked_at=found[users.c.revoked_at],
    )
