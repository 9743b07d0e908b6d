"""Sweeps, their trials, and what these reported"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "sweeps",
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("resumed_at", sa.Double()),
        sa.CheckConstraint("state IN ('RUNNING', 'COMPLETED', 'STOPPED', 'FAILED')", name=op.f("ck_sweeps_state")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_sweeps_owner"), "sweeps", ["owner"])
    op.create_table(
        "trials",
        sa.Column("sweep_id", number, sa.ForeignKey("sweeps.id"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("job_id", number, sa.ForeignKey("jobs.id")),
        sa.Column("value", sa.Double()),
        sa.Column("message", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.CheckConstraint("state IN ('RUNNING', 'COMPLETED', 'PRUNED', 'FAILED', 'CANCELLED')", name=op.f("ck_trials_state")),
        sa.UniqueConstraint("job_id", name=op.f("uq_trials_job_id")),
    )
    op.create_table(
        "trial_values",
        sa.Column("sweep_id", number, sa.ForeignKey("sweeps.id"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("step", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("value", sa.Double(), nullable=False),
    )
