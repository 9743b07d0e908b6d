"""The part of the schema that is about calls of functions."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from carrel.core.domain.call import CallState
from carrel.lab.store.tables import ID, metadata, record_table

_STATES = ", ".join(f"'{state}'" for state in CallState)
#: True of calls that have not ended, and of those with something in files, in the very words of the indexes.
OPEN_ONLY = "state IN ('PENDING', 'RUNNING')"
LYING_ONLY = "arguments_path IS NOT NULL OR result_path IS NOT NULL"

pools = record_table(
    "pools",
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("owner", String(255), nullable=False, index=True),
    Column("closed_at", Double),
    Column("parent", ForeignKey("jobs.id")),
    sqlite_autoincrement=True,
)

#: Jobs that are or were workers of a pool.
pool_workers = Table(
    "pool_workers",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    Column("pool_id", ForeignKey("pools.id"), nullable=False),
    Index(None, "pool_id"),
)

#: Pickled functions, once for all calls of them.
pool_functions = Table(
    "pool_functions",
    metadata,
    Column("pool_id", ForeignKey("pools.id"), primary_key=True),
    Column("digest", String(80), primary_key=True),
    Column("size", BigInteger, nullable=False),
    #: The content, or the file that has it.
    Column("data", LargeBinary),
    Column("path", Text),
)

calls = Table(
    "calls",
    metadata,
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("pool_id", ForeignKey("pools.id"), nullable=False),
    Column("key", String(64), nullable=False),
    Column("label", String(255), nullable=False),
    Column("function", String(80), nullable=False),
    Column("state", String(16), nullable=False),
    Column("retries_left", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    #: The worker that has it or had it last.
    Column("job_id", ForeignKey("jobs.id")),
    Column("attempt", Integer),
    Column("ended_number", BigInteger),
    Column("error", String(32), nullable=False, server_default=text("''")),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("arguments_size", BigInteger, nullable=False),
    Column("arguments", LargeBinary),
    Column("arguments_path", Text),
    Column("result_size", BigInteger, nullable=False, server_default=text("0")),
    Column("result", LargeBinary),
    Column("result_path", Text),
    Column("stdout", LargeBinary),
    Column("stderr", LargeBinary),
    Column("cache", String(80)),
    Column("cached_from", BigInteger),
    Column("time_limit", Double),
    CheckConstraint(f"state IN ({_STATES})", name="state"),
    UniqueConstraint("pool_id", "key"),
    UniqueConstraint("pool_id", "ended_number"),
    Index("ix_calls_open", "pool_id", "id", sqlite_where=text(OPEN_ONLY), postgresql_where=text(OPEN_ONLY)),
    Index("ix_calls_lying", "pool_id", sqlite_where=text(LYING_ONLY), postgresql_where=text(LYING_ONLY)),
    sqlite_autoincrement=True,
)

#: Which calls need the results of which.
call_dependencies = Table(
    "call_dependencies",
    metadata,
    Column("call_id", ForeignKey("calls.id"), primary_key=True, autoincrement=False),
    Column("needs", ForeignKey("calls.id"), primary_key=True, autoincrement=False),
    Index(None, "needs"),
)

#: What calls returned, for equal calls of the same user. The calls themselves may be forgotten before.
cached_results = Table(
    "cached_results",
    metadata,
    Column("owner", String(255), primary_key=True),
    #: Digest of function, code and arguments.
    Column("digest", String(80), primary_key=True),
    Column("label", String(255), nullable=False),
    Column("call_id", BigInteger, nullable=False),
    Column("used_at", Double, nullable=False),
    Column("size", BigInteger, nullable=False),
    #: The content, or the file that has it.
    Column("data", LargeBinary),
    Column("path", Text),
    Index(None, "used_at"),
)
