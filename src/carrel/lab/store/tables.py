"""The schema. Rules that must hold live here too, as keys and checks, not only in the code above."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.schema import SchemaItem

from carrel.core.domain.job import ACTIVE, JobState

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: SQLite gives rowids only to INTEGER; PostgreSQL wants 64 bits for what grows for ever.
ID = BigInteger().with_variant(Integer, "sqlite")
_STATES = ", ".join(f"'{state}'" for state in JobState)
_ACTIVE = ", ".join(sorted(f"'{state}'" for state in ACTIVE))
#: The column of a record that has its other fields.
VALUE = "value"
#: True of jobs that have not ended, in the very words of the indexes: SQLite takes an index for nothing else.
ACTIVE_ONLY = f"state IN ({_ACTIVE})"


def _only(condition: str) -> dict[str, Any]:
    """An index of the rows for which the condition holds."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


def record_table(name: str, *columns: SchemaItem, **options: Any) -> Table:
    """The table of a noun (`carrel.lab.store.records`): fields that SQL selects by are columns, the others JSON."""
    return Table(name, metadata, *columns, Column(VALUE, Text, nullable=False), **options)


#: Facts about the lab itself: its id, the version that wrote the schema.
lab = Table(
    "lab",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

users = Table(
    "users",
    metadata,
    Column("subject", String(255), primary_key=True),
    Column("name", String(255), nullable=False),
    Column("role", String(16), nullable=False),
    Column("account", String(255), nullable=False),
    Column("created_at", Double, nullable=False),
    #: A `UserState`; why, by whom and since when.
    Column("state", String(16), nullable=False, server_default=text("'active'")),
    Column("state_reason", Text, nullable=False, server_default=text("''")),
    Column("state_by", String(255), nullable=False, server_default=text("''")),
    Column("state_since", Double),
    #: When all their tokens were revoked last.
    Column("revoked_at", Double),
    #: Accounts that the groups of their sign-in provider make them a member of, as a JSON list.
    Column("member_of", Text, nullable=False, server_default=text("'[]'")),
    CheckConstraint("role IN ('user', 'manager', 'operator', 'admin')", name="role"),
)

#: What users keep for their jobs, sealed (`carrel.lab.store.secrets`).
secrets = record_table(
    "secrets", Column("subject", ForeignKey("users.subject"), primary_key=True), Column("name", String(128), primary_key=True)
)

#: Who has uploaded which code: the same content is stored once, but only its uploaders may use it by digest.
snapshots = Table(
    "snapshots",
    metadata,
    Column("digest", String(80), primary_key=True),
    Column("subject", ForeignKey("users.subject"), primary_key=True),
    Column("created_at", Double, nullable=False),
    #: Bytes on the disk.
    Column("size", BigInteger, nullable=False, server_default=text("0")),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("kind", String(16), nullable=False),
    Column("owner", ForeignKey("users.subject"), nullable=False),
    Column("account", String(255), nullable=False),
    Column("name", String(255), nullable=False),
    Column("qos", String(64), nullable=False),
    Column("partition", String(64), nullable=False, server_default=text("''")),
    #: What follows is had on each of them.
    Column("nodes", Integer, nullable=False, server_default=text("1")),
    Column("cpus", Integer, nullable=False),
    Column("memory", BigInteger, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("gpu_type", String(64)),
    Column("gpu_memory", BigInteger, nullable=False, server_default=text("0")),
    Column("time", Integer, nullable=False),
    Column("compose", String(255), nullable=False, server_default=text("''")),
    Column("state", String(16), nullable=False),
    Column("reason", String(64), nullable=False),
    Column("message", Text, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("retries_left", Integer, nullable=False, server_default=text("0")),
    Column("requeues_left", Integer, nullable=False, server_default=text("0")),
    Column("exit_code", Integer),
    Column("signal", Integer),
    Column("node", String(255)),
    Column("devices", Text, nullable=False, server_default=text("'[]'")),
    Column("cancelled_by", String(255)),
    Column("run_id", String(64)),
    Column("experiment_id", String(64)),
    #: Its name, as the submitter said it; "": none.
    Column("experiment", String(255), nullable=False, server_default=text("''")),
    #: What it waits for before its first attempt.
    Column("dependency", Text, nullable=False, server_default=text("''")),
    #: Set for an element of an array: the number of the first one's job, its index, and what was asked for.
    Column("array_job_id", BigInteger),
    Column("array_task_id", Integer),
    Column("array_spec", Text, nullable=False, server_default=text("''")),
    #: 0: it cannot be interrupted.
    Column("preemptible", Integer, nullable=False, server_default=text("1")),
    #: Who may read it beside its owner: "owner" (nobody), or "account" (the members of its account).
    Column("visible", String(16), nullable=False, server_default=text("'owner'")),
    #: 1: inputs of it lie elsewhere.
    Column("stage_in", Integer, nullable=False, server_default=text("0")),
    #: The job that submitted it.
    Column("parent", ID, index=True),
    #: What makes it the same as another one (`carrel.core.domain.cache_key`); "": nothing does.
    Column("cache_key", String(64), nullable=False, server_default=text("''"), index=True),
    #: What it has in common with the other steps that were submitted with it.
    Column("pipeline", String(64), nullable=False, server_default=text("''"), index=True),
    #: The `Preemption`, as JSON; NULL while the job keeps its place.
    Column("preempted_by", Text),
    Column("suspended_seconds", Double, nullable=False, server_default=text("0")),
    Column("suspended_at", Double),
    #: How often it was suspended or paused, and for how many people it was paused, as far as that is known.
    Column("pauses", Integer, nullable=False, server_default=text("0")),
    Column("pause_people", Integer, nullable=False, server_default=text("0")),
    #: The `TaskSpec`, as JSON.
    Column("spec", Text, nullable=False),
    CheckConstraint(f"state IN ({_STATES})", name="state"),
    CheckConstraint("cpus >= 1 AND memory > 0 AND gpus >= 0 AND time >= 1", name="resources"),
    CheckConstraint("(ended_at IS NULL) = (state IN (" + _ACTIVE + "))", name="ended"),
    Index(None, "owner", "id"),
    Index("ix_jobs_active", "id", **_only(ACTIVE_ONLY)),
    Index(None, "state", "id"),
    Index(None, "ended_at", "submitted_at"),
    #: Each element is there once.
    Index("ix_jobs_array", "array_job_id", "array_task_id", unique=True, **_only("array_job_id IS NOT NULL")),
    Index("ix_jobs_named", "owner", "name", "id", **_only(ACTIVE_ONLY)),
    sqlite_autoincrement=True,
)

attempts = Table(
    "attempts",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("node", String(255), nullable=False),
    Column("devices", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", String(64), nullable=False),
    Column("message", Text, nullable=False),
    Column("exit_code", Integer),
    Column("signal", Integer),
    Column("leased_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    #: When the lab saw the first metric that it logged.
    Column("metric_at", Double),
    #: Bytes of the runner's journal that are in these tables already.
    Column("journal_offset", BigInteger, nullable=False, server_default=text("0")),
    Column("log_size", BigInteger, nullable=False, server_default=text("0")),
    Column("environment", String(80)),
    Column("environment_lock", String(80)),
    Column("environment_built", Integer),
    Column("python", String(64)),
    #: JSON objects.
    Column("hardware", Text, nullable=False, server_default=text("'{}'")),
    Column("seeds", Text, nullable=False, server_default=text("'{}'")),
    Column("inputs", Text, nullable=False, server_default=text("'{}'")),
    Column("input_sources", Text, nullable=False, server_default=text("'{}'")),
    Column("usage", Text, nullable=False, server_default=text("'{}'")),
    #: What the cells of a session were charged: devices × seconds. NULL: nothing.
    Column("lease_seconds", Double),
    #: For reports, from `usage` and `hardware`; NULL: not measured. Means over its GPUs of `gpu_mean` and `gpu_sm_mean`, in
    #: percent.
    Column("gpu_busy", Double),
    Column("gpu_sm", Double),
    #: Joules that all its GPUs took.
    Column("gpu_energy", Double),
    #: Bytes: the most that was in use of host memory, the same of all its GPUs together, and what these have.
    Column("memory_peak", BigInteger),
    Column("gpu_memory_peak", BigInteger),
    Column("gpu_memory", BigInteger),
    #: As people ask for it ("h200"); "": it has none, or it is not known.
    Column("gpu_type", String(64), nullable=False, server_default=text("''")),
    #: What its owner was told last of GPUs that are hardly busy.
    Column("advice", Text, nullable=False, server_default=text("''")),
    #: For how long it was suspended: nothing is charged for that. NULL: not at all.
    Column("suspended_seconds", Double),
    #: 1 while outputs that were not stored are left in its working directory.
    Column("uncollected", Integer, nullable=False, server_default=text("0")),
    CheckConstraint(f"state IN ({_STATES})", name="state"),
)

#: One row per device that is lent now: the key itself keeps a device from being in two leases.
leases = Table(
    "leases",
    metadata,
    Column("device", String(255), primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("since", Double, nullable=False),
    Index(None, "job_id"),
)

#: When cells of sessions had GPUs, once that is over (`carrel.core.domain.cells.RecordedCell`).
cells = record_table(
    "cells",
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("broker", String(64), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("session", ForeignKey("jobs.id"), nullable=False),
    Column("asked_at", Double, nullable=False),
    Column("granted_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False, index=True),
    Column("computed", Double, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("gpu_type", String(64), nullable=False, server_default=text("''")),
    #: What a broker tells twice is written down once. One that has lost lines of its journal gives numbers a second time.
    UniqueConstraint("broker", "number", "asked_at"),
    Index(None, "session", "seen_at"),
    sqlite_autoincrement=True,
)

outputs = Table(
    "outputs",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("path", String(4096), primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("digest", String(80), nullable=False),
    #: When its content was given up; NULL: it is stored.
    Column("removed_at", Double),
)

#: Idempotent submission: a key of an owner names one job for ever.
submissions = Table(
    "submissions",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    #: SHA-256 of what was asked, so that another request under the same key is refused instead of answered wrongly.
    Column("request", String(64), nullable=False),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
)

#: Append-only; feeds the event stream.
events = Table(
    "events",
    metadata,
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("owner", String(255), nullable=False),
    Column("type", String(16), nullable=False),
    #: JSON object.
    Column("data", Text, nullable=False),
    Index(None, "job_id", "id"),
    Index(None, "owner", "id"),
    #: What owners of waiting jobs were told: few beside the logs.
    Index("ix_events_queue", "job_id", "id", **_only("type = 'queue'")),
    sqlite_autoincrement=True,
)

#: What the lab has still to tell the tracking server; written in the same transaction as the fact itself.
outbox = Table(
    "outbox",
    metadata,
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("kind", String(32), nullable=False),
    #: JSON object.
    Column("payload", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    #: The tracking server's words when it refused the item for good.
    Column("error", Text),
    Index("ix_outbox_pending", "id", sqlite_where=text("error IS NULL"), postgresql_where=text("error IS NULL")),
    Index(None, "job_id"),
    sqlite_autoincrement=True,
)

#: Nodes that are kept for some people, or for nobody, between two moments.
reservations = record_table("reservations", Column("name", String(64), primary_key=True))

#: What administrators tell all users.
announcements = record_table("announcements", Column("id", ID, primary_key=True, autoincrement=True))

#: Nodes on which nothing new starts.
challenges = record_table("challenges", Column("name", String(64), primary_key=True))

teams = record_table(
    "teams",
    Column("challenge", String(64), ForeignKey("challenges.name"), primary_key=True),
    Column("name", String(64), primary_key=True),
)

challenge_submissions = record_table(
    "challenge_submissions",
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("challenge", String(64), ForeignKey("challenges.name"), nullable=False),
    Column("team", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Index(None, "challenge", "team"),
    Index(None, "state"),
    sqlite_autoincrement=True,
)

challenge_notices = record_table(
    "challenge_notices",
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("challenge", String(64), ForeignKey("challenges.name"), nullable=False, index=True),
    sqlite_autoincrement=True,
)

#: Machines made from parts.
compositions = record_table(
    "compositions",
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("state", String(16), nullable=False),
    #: As `Composition.end`.
    Column("end", Double, nullable=False),
    Index(None, "state", "end"),
    sqlite_autoincrement=True,
)

challenge_samples = record_table(
    "challenge_samples",
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("challenge", String(64), ForeignKey("challenges.name"), nullable=False),
    Column("team", String(64), nullable=False),
    Column("day", String(10), nullable=False),
    Column("sample", String(1024), nullable=False),
    Index(None, "challenge", "team", "day"),
    Index(None, "challenge", "team", "sample"),
    sqlite_autoincrement=True,
)

drains = record_table("drains", Column("node", String(255), primary_key=True))

#: The first range that the owner of a waiting job saw, and when the job started. Unix seconds.
start_ranges = Table(
    "start_ranges",
    metadata,
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("shown_at", Double, nullable=False),
    #: Before the correction by earlier starts: lower end, middle, upper end.
    Column("foreseen_low", Double, nullable=False),
    Column("foreseen", Double, nullable=False),
    Column("foreseen_high", Double, nullable=False),
    Column("low", Double, nullable=False),
    Column("high", Double, nullable=False),
    #: Null while it waits.
    Column("started_at", Double),
    UniqueConstraint("job_id", "shown_at"),
    Index(None, "started_at"),
    sqlite_autoincrement=True,
)

#: What came of repeating a job, as it was asked for last.
verifications = Table(
    "verifications",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("value", Text, nullable=False),
)

#: The job with whose results later jobs of a project are compared. A project is the jobs of one name of one owner.
baselines = Table(
    "baselines",
    metadata,
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("owner", String(255), nullable=False),
    Column("project", String(255), nullable=False),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("tolerance", Double, nullable=False),
    #: Patterns, as a JSON list.
    Column("ignored", Text, nullable=False),
    Column("set_at", Double, nullable=False),
    UniqueConstraint("owner", "project"),
    sqlite_autoincrement=True,
)

#: Jobs that run a baseline again, and what came of it.
calibrations = Table(
    "calibrations",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("baseline_id", ForeignKey("baselines.id"), nullable=False),
    Column("value", Text, nullable=False),
    Index(None, "baseline_id"),
)
