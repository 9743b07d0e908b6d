"""Access tokens by their digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from carrel.core.domain.nouns import TOKENS
from carrel.core.domain.token import Token
from carrel.core.domain.user import User
from carrel.lab.store.credentials import forget_credentials
from carrel.lab.store.database import Database
from carrel.lab.store.known import Known
from carrel.lab.store.people import USER, user_of
from carrel.lab.store.records import Rows
from carrel.lab.store.sign_in_tables import access_tokens, device_codes, tokens
from carrel.lab.store.tables import users

#: Tokens as rows.
TOKEN_ROWS = Rows(tokens, TOKENS)


class TokenTable:
    """Implements `carrel.core.control.tokens.TokenStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Asked for with every request. The newest thousand that were good for something: a stranger's guesses take no room.
        self._known: Known[str, tuple[Token, User]] = Known(database, tokens, users, access_tokens, most=1000)

    def add(self, new: Token, *, now: float) -> Token:
        """Remember a token."""
        with self._database.write() as connection:
            return TOKEN_ROWS.insert(connection, replace(new, created_at=now))

    def find(self, digest: str) -> tuple[Token, User] | None:
        """The token with this digest and whose it is, valid or not; or None."""
        return self._known.read(digest, lambda: self._find(digest))

    def known(self, digest: str) -> tuple[Token, User] | None:
        """What `find` would say now, where that is known without waiting for anything; else None."""
        return self._known.get(digest)

    def _find(self, digest: str) -> tuple[Token, User] | None:
        query = sa.select(tokens, *USER).join(users)
        with self._database.read() as connection:
            row = connection.execute(query.where(tokens.c.digest == digest)).first()
            if row is not None:
                return TOKEN_ROWS.read(row._mapping), user_of(row)
            # The access token of a sign-in: it is that token, and ends before it.
            of_sign_in = query.add_columns(access_tokens.c.expires_at.label("access_until")).join(
                access_tokens, access_tokens.c.token_id == tokens.c.id
            )
            row = connection.execute(of_sign_in.where(access_tokens.c.digest == digest)).first()
        return (
            None
            if row is None
            else (replace(TOKEN_ROWS.read(row._mapping), expires_at=row._mapping["access_until"]), user_of(row))
        )

    def get(self, token_id: int) -> tuple[Token, User] | None:
        """The token with this number and whose it is, valid or not; or None."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(tokens, *USER).join(users).where(tokens.c.id == token_id)).first()
        return None if row is None else (TOKEN_ROWS.read(row._mapping), user_of(row))

    def list(self, subject: str | None) -> Sequence[Token]:
        """All tokens of a user, or of everybody, the oldest first."""
        query = sa.select(tokens).order_by(tokens.c.id)
        if subject is not None:
            query = query.where(tokens.c.user == subject)
        with self._database.read() as connection:
            return [TOKEN_ROWS.read(row._mapping) for row in connection.execute(query)]

    def revoke(self, *, by: str, now: float, token_id: int | None = None, subject: str | None = None) -> int:
        """Revoke one token and those that were made by showing it, or all of a user; return how many that were.

        With all of a user those of their jobs are void, too (`User.revoked_at`).
        """
        with self._database.write() as connection:
            return _revoke(connection, by, now, token_id=token_id, subject=subject)

    def replace(self, new: Token, *, by: str, now: float, token_id: int | None = None) -> Token | None:
        """Revoke one token (default: all of the new one's owner) and remember the new one, in one step.

        With all tokens goes the password. None, and nothing has changed, when that one token is revoked already.
        """
        with self._database.write() as connection:
            subject = new.user if token_id is None else None
            if subject is not None:
                forget_credentials(connection, subject)
            if _revoke(connection, by, now, token_id=token_id, subject=subject) or token_id is None:
                return TOKEN_ROWS.insert(connection, replace(new, created_at=now))
        return None

    def used(self, moments: Mapping[int, float]) -> None:
        """Remember when tokens were used last, by their numbers."""
        change = sa.update(tokens).where(tokens.c.id == sa.bindparam("number")).values(last_used_at=sa.bindparam("at"))
        with self._database.write() as connection:
            connection.execute(change, [{"number": number, "at": at} for number, at in moments.items()])


def _revoke(connection: sa.Connection, by: str, now: float, *, token_id: int | None, subject: str | None) -> int:
    if token_id is None:  # nor does what they have approved come true
        connection.execute(sa.delete(device_codes).where(device_codes.c.subject == subject))
        connection.execute(sa.update(users).where(users.c.subject == subject).values(revoked_at=now))
    change = sa.update(tokens).where(tokens.c.revoked_at.is_(None)).values(revoked_at=now, revoked_by=by)
    one = sa.or_(tokens.c.id == token_id, tokens.c.parent == token_id)
    change = change.where(one if token_id is not None else tokens.c.user == subject)
    return connection.execute(change).rowcount
