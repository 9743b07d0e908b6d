"""Partitions, memory of GPUs, reservations"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("partition", sa.String(length=64), server_default=sa.text("''"), nullable=False))
    op.add_column("jobs", sa.Column("gpu_memory", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.create_table(
        "reservations",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("begin", sa.Double(), nullable=False),
        sa.Column("end", sa.Double(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("users", sa.Text(), nullable=False),
        sa.Column("accounts", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_reservations")),
    )
