"""Jobs that give way"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("preemptible", sa.Integer(), server_default=sa.text("1"), nullable=False))
    op.add_column("jobs", sa.Column("preempted_by", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("suspended_seconds", sa.Double(), server_default=sa.text("0"), nullable=False))
    op.add_column("jobs", sa.Column("suspended_at", sa.Double(), nullable=True))
    op.add_column("attempts", sa.Column("suspended_seconds", sa.Double(), nullable=True))
