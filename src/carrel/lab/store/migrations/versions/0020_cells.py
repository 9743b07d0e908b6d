"""When cells of sessions had GPUs"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "cells",
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("broker", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("job_id", number, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("process", sa.String(64), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("granted_at", sa.Double(), nullable=False),
        sa.Column("returned_at", sa.Double()),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("computed", sa.Double(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("gpu_type", sa.String(64), nullable=False),
        sa.Column("gpu_memory", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.UniqueConstraint("broker", "number", "asked_at", name=op.f("uq_cells_broker_number_asked_at")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_cells_job_id"), "cells", ["job_id"])
    op.create_index(op.f("ix_cells_seen_at"), "cells", ["seen_at"])
