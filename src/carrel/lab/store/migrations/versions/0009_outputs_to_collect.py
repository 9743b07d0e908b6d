"""Outputs that are left in working directories"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("uncollected", sa.Integer(), server_default=sa.text("0"), nullable=False))
