"""What users keep for their jobs"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "secrets",
        sa.Column("subject", sa.String(255), sa.ForeignKey("users.subject"), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("set_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double()),
    )
