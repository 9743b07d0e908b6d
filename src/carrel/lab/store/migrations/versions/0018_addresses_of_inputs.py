"""What the addresses of an attempt's inputs named when they were fetched: a commit for a branch, a rule for a replica"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("input_sources", sa.Text(), server_default=sa.text("'{}'"), nullable=False))
