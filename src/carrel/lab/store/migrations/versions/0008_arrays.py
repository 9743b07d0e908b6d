"""Arrays of jobs"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_ELEMENTS = sa.text("array_job_id IS NOT NULL")
_ACTIVE = sa.text("state IN ('CONFIGURING', 'PENDING', 'RUNNING', 'SUSPENDED')")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("array_job_id", sa.BigInteger()))
    op.add_column("jobs", sa.Column("array_task_id", sa.Integer()))
    op.add_column("jobs", sa.Column("array_spec", sa.Text(), server_default=sa.text("''"), nullable=False))
    columns = ["array_job_id", "array_task_id"]
    op.create_index("ix_jobs_array", "jobs", columns, unique=True, sqlite_where=_ELEMENTS, postgresql_where=_ELEMENTS)
    op.create_index("ix_jobs_named", "jobs", ["owner", "name", "id"], sqlite_where=_ACTIVE, postgresql_where=_ACTIVE)
