"""Calls of functions, and the pools of workers that carry them out"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "pools",
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("parent", number, sa.ForeignKey("jobs.id")),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double()),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_pools_owner"), "pools", ["owner"])
    op.create_table(
        "pool_workers",
        sa.Column("job_id", number, sa.ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
        sa.Column("pool_id", number, sa.ForeignKey("pools.id"), nullable=False),
    )
    op.create_index(op.f("ix_pool_workers_pool_id"), "pool_workers", ["pool_id"])
    op.create_table(
        "pool_functions",
        sa.Column("pool_id", number, sa.ForeignKey("pools.id"), primary_key=True),
        sa.Column("digest", sa.String(80), primary_key=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary()),
        sa.Column("path", sa.Text()),
    )
    op.create_table(
        "calls",
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("pool_id", number, sa.ForeignKey("pools.id"), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("label", sa.String(255), nullable=False),
        sa.Column("function", sa.String(80), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("retries_left", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.Column("job_id", number, sa.ForeignKey("jobs.id")),
        sa.Column("attempt", sa.Integer()),
        sa.Column("ended_number", sa.BigInteger()),
        sa.Column("error", sa.String(32), nullable=False, server_default=sa.text("''")),
        sa.Column("message", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("arguments_size", sa.BigInteger(), nullable=False),
        sa.Column("arguments", sa.LargeBinary()),
        sa.Column("arguments_path", sa.Text()),
        sa.Column("result_size", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("result", sa.LargeBinary()),
        sa.Column("result_path", sa.Text()),
        sa.Column("stdout", sa.LargeBinary()),
        sa.Column("stderr", sa.LargeBinary()),
        sa.CheckConstraint("state IN ('PENDING', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED')", name=op.f("ck_calls_state")),
        sa.UniqueConstraint("pool_id", "key", name=op.f("uq_calls_pool_id_key")),
        sa.UniqueConstraint("pool_id", "ended_number", name=op.f("uq_calls_pool_id_ended_number")),
        sqlite_autoincrement=True,
    )
    open_only = sa.text("state IN ('PENDING', 'RUNNING')")
    op.create_index("ix_calls_open", "calls", ["pool_id", "id"], sqlite_where=open_only, postgresql_where=open_only)
