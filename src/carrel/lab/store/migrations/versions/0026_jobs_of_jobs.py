"""Jobs that jobs submitted, results that are taken from earlier jobs, and steps of pipelines"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("jobs", sa.Column("parent", number))
    op.add_column("jobs", sa.Column("cache_key", sa.String(80), server_default=sa.text("''"), nullable=False))
    op.add_column("jobs", sa.Column("pipeline", sa.String(64), server_default=sa.text("''"), nullable=False))
    op.create_index(op.f("ix_jobs_parent"), "jobs", ["parent"])
    op.create_index(op.f("ix_jobs_cache_key"), "jobs", ["cache_key"])
    op.create_index(op.f("ix_jobs_pipeline"), "jobs", ["pipeline"])
