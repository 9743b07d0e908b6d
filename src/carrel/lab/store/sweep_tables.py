"""The part of the schema that is about sweeps."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Double, ForeignKey, Index, Integer, String, Table, Text, text

from carrel.core.domain.sweep import SweepState, TrialState
from carrel.lab.store.tables import ID, metadata

_SWEEP_STATES = ", ".join(f"'{state}'" for state in SweepState)
_TRIAL_STATES = ", ".join(f"'{state}'" for state in TrialState)

sweeps = Table(
    "sweeps",
    metadata,
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("owner", String(255), nullable=False),
    #: A `SweepSpec` as JSON.
    Column("spec", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("created_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("resumed_at", Double),
    Column("last_step", BigInteger),
    CheckConstraint(f"state IN ({_SWEEP_STATES})", name="state"),
    Index(None, "owner"),
    sqlite_autoincrement=True,
)

trials = Table(
    "trials",
    metadata,
    Column("sweep_id", ForeignKey("sweeps.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("parameters", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("job_id", ForeignKey("jobs.id"), unique=True),
    Column("value", Double),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("created_at", Double, nullable=False),
    #: When its job ended.
    Column("ended_at", Double),
    #: JSON object.
    Column("attributes", Text, nullable=False, server_default=text("'{}'")),
    CheckConstraint(f"state IN ({_TRIAL_STATES})", name="state"),
)

#: What trials reported of the metric.
trial_values = Table(
    "trial_values",
    metadata,
    Column("sweep_id", ForeignKey("sweeps.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("value", Double, nullable=False),
)
