"""Programs that are signed in as somebody, and those that wait for it."""

from __future__ import annotations

import secrets
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from carrel.core.domain.sign_in import AuthorizationRequest, Decision, Device, NewSignIn, Renewal, SignIn
from carrel.core.domain.token import Token
from carrel.lab.store.database import Database
from carrel.lab.store.people import USER, user_of
from carrel.lab.store.sign_in_tables import access_tokens, device_codes, sign_ins, tokens
from carrel.lab.store.tables import users
from carrel.lab.store.tokens import TOKEN_ROWS

#: Seconds for which codes are remembered after their end: so long a program can learn what became of them.
_REMEMBERED = 86400.0
_ASKED = ("client", "scopes", "host", "address")
_DEVICE = ("created_at", "expires_at", "interval", "polled_at", "subject", "account")


class SignInTable:
    """Sign-ins of programs. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ---- devices

    def add_device(self, digest: str, user_code: str, device: Device, *, of_address: int, of_all: int) -> bool:
        """Remember a device. False, and nothing has changed, when so many of its address, or of all, wait already."""
        now = device.created_at
        waits = sa.and_(device_codes.c.decision == Decision.NONE.value, device_codes.c.expires_at > now)
        of_its = sa.func.sum(sa.case((device_codes.c.address == device.asked.address, 1), else_=0))
        with self._database.write() as connection:
            connection.execute(sa.delete(device_codes).where(device_codes.c.expires_at < now - _REMEMBERED))
            number, its = connection.execute(sa.select(sa.func.count(), of_its).where(waits)).one()
            if number >= of_all or (its or 0) >= of_address:
                return False
            row = {name: getattr(device, name) for name in _DEVICE} | _asked_row(device.asked)
            connection.execute(sa.insert(device_codes), {"digest": digest, "user_code": user_code, **row})
        return True

    def device(self, digest: str) -> Device | None:
        """The device with this device code, or None."""
        return self._device(device_codes.c.digest == digest)

    def device_of(self, user_code: str) -> Device | None:
        """The device with this user code, or None."""
        return self._device(device_codes.c.user_code == user_code)

    def _device(self, which: sa.ColumnElement[bool]) -> Device | None:
        with self._database.read() as connection:
            row = connection.execute(sa.select(device_codes).where(which)).first()
        if row is None:
            return None
        found = row._mapping
        values = {name: found[name] for name in _DEVICE}
        return Device(asked=_asked_of(row), decision=Decision(found["decision"]), **values)

    def decide(self, user_code: str, decision: Decision, *, subject: str, account: str | None, now: float) -> bool:
        """Remember what a person said; False when the device has been decided on, or does not wait any more."""
        change = sa.update(device_codes).where(
            device_codes.c.user_code == user_code,
            device_codes.c.decision == Decision.NONE.value,
            device_codes.c.expires_at > now,
        )
        with self._database.write() as connection:
            return bool(connection.execute(change.values(decision=decision.value, subject=subject, account=account)).rowcount)

    def polled(self, digest: str, *, now: float, interval: int) -> None:
        """Remember when a device asked last, and how long it has to wait from then on."""
        change = sa.update(device_codes).where(device_codes.c.digest == digest).values(polled_at=now, interval=interval)
        with self._database.write() as connection:
            connection.execute(change)

    def take_device(self, digest: str, new: NewSignIn, *, now: float) -> Token | None:
        """Make the sign-in of an approved device, once; None when that was done, or it is not approved."""
        approved = sa.and_(
            device_codes.c.digest == digest,
            device_codes.c.decision == Decision.APPROVED.value,
            device_codes.c.subject == new.subject,
        )
        with self._database.write() as connection:
            if not connection.execute(sa.update(device_codes).where(approved).values(decision=Decision.TAKEN.value)).rowcount:
                return None
            return _insert(connection, new, now)

    # ---- sign-ins

    def sign_in(self, family: str) -> SignIn | None:
        """The sign-in of this family of tokens, valid or not; or None."""
        query = (
            sa.select(sign_ins, tokens, *USER).select_from(sign_ins.join(tokens).join(users)).where(sign_ins.c.family == family)
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        if row is None:
            return None
        found = row._mapping
        return SignIn(
            token=TOKEN_ROWS.read(row._mapping),
            user=user_of(row),
            client=found[sign_ins.c.client],
            refresh=found[sign_ins.c.refresh],
            previous=found[sign_ins.c.previous],
            retry=found[sign_ins.c.retry],
            ends_at=found[sign_ins.c.ends_at],
        )

    def is_sign_in(self, token_id: int) -> bool:
        """Whether the token with this number is a sign-in's."""
        with self._database.read() as connection:
            return connection.execute(sa.select(sign_ins.c.token_id).where(sign_ins.c.token_id == token_id)).first() is not None

    def renew(self, token_id: int, expected: str, new: Renewal, *, now: float) -> bool:
        """Put new tokens in the place of the refresh token `expected`; False when it is not the present one, or all has ended."""
        present = sa.and_(sign_ins.c.token_id == token_id, sign_ins.c.refresh == expected)
        goes_on = sa.and_(tokens.c.id == token_id, tokens.c.revoked_at.is_(None), tokens.c.expires_at > now)
        secrets_of = {"refresh": new.refresh, "previous": new.previous, "retry": new.retry}
        over = sa.and_(access_tokens.c.token_id == token_id, access_tokens.c.expires_at <= now)
        with self._database.write() as connection:
            if connection.execute(sa.select(tokens.c.id).where(goes_on)).first() is None:
                return False
            if not connection.execute(sa.update(sign_ins).where(present).values(secrets_of)).rowcount:
                return False
            connection.execute(sa.update(tokens).where(goes_on).values(expires_at=new.idle_until))
            connection.execute(sa.delete(access_tokens).where(over))
            _give_access(connection, token_id, new.access, new.access_until)
        return True


def _insert(connection: sa.Connection, new: NewSignIn, now: float) -> Token:
    made = TOKEN_ROWS.insert(
        connection,
        Token(
            # Of a secret that nobody has: the sign-in's access tokens open the lab, this does not.
            digest=secrets.token_hex(32),
            user=new.subject,
            name=new.name,
            scopes=tuple(new.scopes),
            account=new.account,
            created_at=now,
            created_by=new.subject,
            expires_at=new.idle_until,
        ),
    )
    about = {"client": new.client, "family": new.family, "refresh": new.refresh, "ends_at": new.ends_at}
    connection.execute(sa.insert(sign_ins), {"token_id": made.id, **about})
    _give_access(connection, made.id, new.access, new.access_until)
    return made


def _give_access(connection: sa.Connection, token_id: int, digest: str, until: float) -> None:
    connection.execute(sa.insert(access_tokens), {"digest": digest, "token_id": token_id, "expires_at": until})


def _asked_row(asked: AuthorizationRequest) -> dict[str, Any]:
    return {"client": asked.client, "scopes": ",".join(asked.scopes), "host": asked.host, "address": asked.address}


def _asked_of(row: Row[Any]) -> AuthorizationRequest:
    client, scopes, host, address = (row._mapping[name] for name in _ASKED)
    return AuthorizationRequest(client=client, scopes=tuple(scopes.split(",")), host=host, address=address)
