"""Passwords, as hashes, and passkeys of users"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "passwords",
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("hash", sa.String(length=255), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["subject"], ["users.subject"], name=op.f("fk_passwords_subject")),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_passwords")),
    )
    op.create_table(
        "passkeys",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("credential", sa.LargeBinary(), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column("sign_count", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double()),
        sa.ForeignKeyConstraint(["subject"], ["users.subject"], name=op.f("fk_passkeys_subject")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_passkeys")),
        sa.UniqueConstraint("credential", name=op.f("uq_passkeys_credential")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_passkeys_subject"), "passkeys", ["subject"])
