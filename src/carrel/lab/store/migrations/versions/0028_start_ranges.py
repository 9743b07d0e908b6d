"""What people saw of start times"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "start_ranges",
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("job_id", number, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("shown_at", sa.Double(), nullable=False),
        sa.Column("foreseen_low", sa.Double(), nullable=False),
        sa.Column("foreseen", sa.Double(), nullable=False),
        sa.Column("foreseen_high", sa.Double(), nullable=False),
        sa.Column("low", sa.Double(), nullable=False),
        sa.Column("high", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.UniqueConstraint("job_id", "shown_at", name=op.f("uq_start_ranges_job_id_shown_at")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_start_ranges_started_at"), "start_ranges", ["started_at"])
