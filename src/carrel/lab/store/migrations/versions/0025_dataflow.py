"""Calls that wait for other calls, and results that are kept for equal calls"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("calls", sa.Column("cache", sa.String(80)))
    op.add_column("calls", sa.Column("cached_from", sa.BigInteger()))
    op.create_table(
        "call_dependencies",
        sa.Column("call_id", number, sa.ForeignKey("calls.id"), primary_key=True, autoincrement=False),
        sa.Column("needs", number, sa.ForeignKey("calls.id"), primary_key=True, autoincrement=False),
    )
    op.create_index(op.f("ix_call_dependencies_needs"), "call_dependencies", ["needs"])
    op.create_table(
        "cached_results",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("digest", sa.String(80), primary_key=True),
        sa.Column("label", sa.String(255), nullable=False),
        sa.Column("call_id", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary()),
        sa.Column("path", sa.Text()),
    )
    op.create_index(op.f("ix_cached_results_used_at"), "cached_results", ["used_at"])
