"""What is kept: sizes of code, and outputs that are not stored any more"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("outputs", sa.Column("removed_at", sa.Double(), nullable=True))
    op.add_column("snapshots", sa.Column("size", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
