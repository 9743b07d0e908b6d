"""What came of repeating jobs"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "verifications",
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("value", sa.Text(), nullable=False),
    )
