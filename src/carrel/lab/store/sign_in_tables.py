"""The part of the schema that is about who signs in, and with what."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    UniqueConstraint,
    text,
)

from carrel.lab.store.tables import ID, metadata, record_table

#: Who somebody is at the sign-in provider (OpenID Connect Core 1.0, 5.7: issuer and subject, together, never change hands).
identities = Table(
    "identities",
    metadata,
    Column("subject", ForeignKey("users.subject"), primary_key=True),
    Column("issuer", String(1024), nullable=False),
    #: The provider's name for them.
    Column("sub", String(255), nullable=False),
    Column("linked_at", Double, nullable=False),
    Column("last_used_at", Double),
    #: The role that their groups gave them; NULL: theirs was given by hand, or is "user".
    Column("role", String(16)),
    UniqueConstraint("issuer", "sub"),
)

#: Personal tokens, by the SHA-256 of the token: a reader of the database cannot sign in with what is there.
tokens = record_table(
    "tokens",
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("digest", String(64), nullable=False),
    Column("user", ForeignKey("users.subject"), nullable=False, index=True),
    #: The token that was shown for it, and with which it ends.
    Column("parent", ForeignKey("tokens.id"), index=True),
    Column("expires_at", Double),
    #: To the minute.
    Column("last_used_at", Double),
    Column("revoked_at", Double),
    Column("revoked_by", String(255)),
    UniqueConstraint("digest"),
    sqlite_autoincrement=True,
)

#: Programs that are signed in as somebody (`carrel.lab.signin`). Each has one token, by whose number it is listed and revoked;
#: the digest of that one has no secret to it: what opens the lab are the access tokens below. All secrets are digests.
sign_ins = Table(
    "sign_ins",
    metadata,
    Column("token_id", ForeignKey("tokens.id"), primary_key=True, autoincrement=False),
    Column("client", String(64), nullable=False),
    #: The part of the refresh token that stays, and the one that changes with each use.
    Column("family", String(64), nullable=False),
    Column("refresh", String(64), nullable=False),
    #: The one before, and the secret that was shown with it.
    Column("previous", String(64)),
    Column("retry", String(64)),
    #: When it ends, however much it is used.
    Column("ends_at", Double, nullable=False),
    UniqueConstraint("family"),
)

#: What is good for an hour; of each sign-in those that have not ended.
access_tokens = Table(
    "access_tokens",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("token_id", ForeignKey("sign_ins.token_id"), nullable=False),
    Column("expires_at", Double, nullable=False),
    Index(None, "token_id"),
)

#: Programs that wait for somebody to approve them (RFC 8628). User codes are digests under a key of the lab's.
device_codes = Table(
    "device_codes",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("user_code", String(64), nullable=False),
    Column("client", String(64), nullable=False),
    Column("scopes", String(255), nullable=False),
    Column("host", String(255), nullable=False),
    Column("address", String(64), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    #: Seconds.
    Column("interval", Integer, nullable=False),
    Column("polled_at", Double),
    #: A `Decision`, and who made it.
    Column("decision", String(16), nullable=False, server_default=text("'none'")),
    Column("subject", ForeignKey("users.subject")),
    Column("account", String(255)),
    UniqueConstraint("user_code"),
)

#: Passwords of users, as Argon2id makes them (`carrel.lab.credentials.passwords`).
passwords = Table(
    "passwords",
    metadata,
    Column("subject", ForeignKey("users.subject"), primary_key=True),
    Column("hash", String(255), nullable=False),
    Column("changed_at", Double, nullable=False),
)
