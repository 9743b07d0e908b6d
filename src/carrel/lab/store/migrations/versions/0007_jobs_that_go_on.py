"""Jobs that go on after their walltime, and jobs that start after others"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("requeues_left", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("jobs", sa.Column("dependency", sa.Text(), server_default=sa.text("''"), nullable=False))
