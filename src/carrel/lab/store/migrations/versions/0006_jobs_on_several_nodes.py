"""Jobs on several nodes"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("nodes", sa.Integer(), server_default=sa.text("1"), nullable=False))
