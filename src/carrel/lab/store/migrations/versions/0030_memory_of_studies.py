"""What samplers and pruners keep with trials"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sweeps", sa.Column("last_step", sa.BigInteger()))
    op.add_column("trials", sa.Column("attributes", sa.Text(), server_default=sa.text("'{}'"), nullable=False))
