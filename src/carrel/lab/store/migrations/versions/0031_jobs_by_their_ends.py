"""Reports of use find the jobs that were there in a range"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_jobs_ended_at_submitted_at", "jobs", ["ended_at", "submitted_at"])
