"""Who users are at the sign-in provider, and accounts that its groups make them members of"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("users", sa.Column("member_of", sa.Text(), nullable=False, server_default=sa.text("'[]'")))
    op.create_table(
        "identities",
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("issuer", sa.String(length=1024), nullable=False),
        sa.Column("sub", sa.String(length=255), nullable=False),
        sa.Column("linked_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double()),
        sa.Column("role", sa.String(length=16)),
        sa.ForeignKeyConstraint(["subject"], ["users.subject"], name=op.f("fk_identities_subject")),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_identities")),
        sa.UniqueConstraint("issuer", "sub", name=op.f("uq_identities_issuer_sub")),
    )
