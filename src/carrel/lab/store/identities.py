"""Who users are at the sign-in provider, and what its groups give them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from carrel.core.domain.identity import Given, Identity
from carrel.core.domain.user import Role, UserState
from carrel.lab.store.database import Database
from carrel.lab.store.sign_in_tables import identities
from carrel.lab.store.tables import users

_BY_HAND = "it was given by hand"
_LAST = "they are the only administrator"


class IdentityTable:
    """Who is who at the provider. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, issuer: str, sub: str) -> Identity | None:
        """The user who is linked to this person, or None."""
        return self._one((identities.c.issuer == issuer) & (identities.c.sub == sub))

    def of(self, subject: str) -> Identity | None:
        """Whom the user is linked to, or None."""
        return self._one(identities.c.subject == subject)

    def _one(self, which: sa.ColumnElement[bool]) -> Identity | None:
        with self._database.read() as connection:
            row = connection.execute(sa.select(identities).where(which)).first()
        return None if row is None else _identity(row)

    def link(self, subject: str, issuer: str, sub: str, *, now: float) -> bool:
        """Link an active user. False, and nothing has changed, when one of the two is linked already, or the user is none.

        A link to another issuer is replaced: a lab has one provider.
        """
        with self._database.write() as connection:
            user = _lock(connection, subject)
            if user is None or user.state != UserState.ACTIVE:
                return False
            there = (identities.c.issuer == issuer) & ((identities.c.sub == sub) | (identities.c.subject == subject))
            if connection.execute(sa.select(identities.c.subject).where(there)).first() is not None:
                return False
            unlink(connection, subject)
            row = {"subject": subject, "issuer": issuer, "sub": sub, "linked_at": now}
            connection.execute(sa.insert(identities), row)
        return True

    def give(self, identity: Identity, role: Role | None, accounts: Collection[str], *, now: float) -> Given | None:
        """The user has what their groups stand for: `role`, or none, and exactly these accounts. None: the link is gone.

        A role that was given by hand stays as it is. The last administrator keeps theirs.
        """
        with self._database.write() as connection:
            user = _lock(connection, identity.subject)
            mine = (identities.c.issuer == identity.issuer) & (identities.c.sub == identity.sub)
            row = connection.execute(sa.select(identities).where(mine, identities.c.subject == identity.subject)).first()
            if user is None or row is None:
                return None
            before = Role(user.role)
            after, kept = _role_after(connection, identity.subject, before, row.role, role)
            by_hand = before is not Role.USER and before.value != row.role
            given = None if by_hand or after is Role.USER else after.value
            had = frozenset(json.loads(user.member_of))
            mine_now = frozenset(accounts)
            change = sa.update(users).where(users.c.subject == identity.subject)
            connection.execute(change.values(role=after.value, member_of=json.dumps(sorted(mine_now))))
            connection.execute(sa.update(identities).where(mine).values(last_used_at=now, role=given))
        return Given(role_before=before, role=after, accounts_before=had, accounts=mine_now, kept=kept)

    def take_back(self, *, but: str | None) -> Sequence[str]:
        """Take all roles and accounts that came from groups, but for links to the issuer `but`; return whose."""
        taken = []
        with self._database.write() as connection:
            query = sa.select(identities.c.subject).join(users)
            query = query.where((identities.c.role.is_not(None)) | (users.c.member_of != "[]"))
            if but is not None:
                query = query.where(identities.c.issuer != but)
            for subject in connection.execute(query).scalars().all():
                _take(connection, subject)
                taken.append(subject)
        return taken


def unlink(connection: sa.Connection, subject: str) -> None:
    """Part of a transaction: the user is linked to nobody from now on, and has nothing from groups."""
    _take(connection, subject)
    connection.execute(sa.delete(identities).where(identities.c.subject == subject))


def _take(connection: sa.Connection, subject: str) -> None:
    user = _lock(connection, subject)
    given = connection.execute(sa.select(identities.c.role).where(identities.c.subject == subject)).scalar()
    if user is None:
        return
    after, _ = _role_after(connection, subject, Role(user.role), given, None)
    connection.execute(sa.update(users).where(users.c.subject == subject).values(role=after.value, member_of="[]"))
    left = given if after is not Role.USER else None
    connection.execute(sa.update(identities).where(identities.c.subject == subject).values(role=left))


def _role_after(connection: sa.Connection, subject: str, now: Role, given: str | None, wanted: Role | None) -> tuple[Role, str]:
    """The role of a user who has `now`, of which `given` came from groups, when these say `wanted`; and why it is not that."""
    if now is not Role.USER and now.value != given:
        return now, _BY_HAND if wanted is not None else ""
    after = wanted or Role.USER
    if now is Role.ADMIN and after is not Role.ADMIN:
        others = sa.select(users.c.subject).where(
            users.c.role == Role.ADMIN, users.c.state == UserState.ACTIVE, users.c.subject != subject
        )
        if connection.execute(others.limit(1)).first() is None:
            return now, _LAST
    return after, ""


def _lock(connection: sa.Connection, subject: str) -> Row[Any] | None:
    return connection.execute(sa.select(users).where(users.c.subject == subject).with_for_update()).first()


def _identity(row: Row[Any]) -> Identity:
    found = row._mapping
    role = found[identities.c.role]
    values = {column.name: found[column] for column in identities.c if column is not identities.c.role}
    return Identity(**values, role=None if role is None else Role(role))
