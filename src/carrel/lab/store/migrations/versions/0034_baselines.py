"""Baselines of projects"""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "baselines",
        sa.Column("id", ID, primary_key=True, autoincrement=True),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("project", sa.String(255), nullable=False),
        sa.Column("job_id", ID, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("tolerance", sa.Double(), nullable=False),
        sa.Column("ignored", sa.Text(), nullable=False),
        sa.Column("set_at", sa.Double(), nullable=False),
        sa.UniqueConstraint("owner", "project", name=op.f("uq_baselines_owner_project")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "calibrations",
        sa.Column("job_id", ID, sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("baseline_id", ID, sa.ForeignKey("baselines.id"), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
    )
    op.create_index("ix_calibrations_baseline_id", "calibrations", ["baseline_id"])
