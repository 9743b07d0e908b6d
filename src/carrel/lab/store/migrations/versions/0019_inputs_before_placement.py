"""Jobs whose inputs lie elsewhere: they are fetched before the job is placed"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("stage_in", sa.Integer(), server_default=sa.text("0"), nullable=False))
