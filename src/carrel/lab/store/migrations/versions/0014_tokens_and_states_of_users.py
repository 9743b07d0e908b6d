"""Tokens with a number, a name, scopes and an end; users who are suspended or removed"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("users", sa.Column("state", sa.String(length=16), server_default=sa.text("'active'"), nullable=False))
    op.add_column("users", sa.Column("state_reason", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column("users", sa.Column("state_by", sa.String(length=255), server_default=sa.text("''"), nullable=False))
    op.add_column("users", sa.Column("state_since", sa.Double()))
    connection = op.get_bind()
    query = "SELECT * FROM tokens ORDER BY created_at, digest"
    before = connection.execute(sa.text(query)).mappings().all()
    op.drop_table("tokens")
    table = op.create_table(
        "tokens",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("scopes", sa.String(length=255), nullable=False),
        sa.Column("account", sa.String(length=255)),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("last_used_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("revoked_by", sa.String(length=255)),
        sa.ForeignKeyConstraint(["subject"], ["users.subject"], name=op.f("fk_tokens_subject")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_tokens_subject"), "tokens", ["subject"])
    # They go on as they were: everything that their owners may do, and without an end.
    rows = [
        {
            "digest": row["digest"],
            "subject": row["subject"],
            "name": "from before tokens had names",
            "scopes": "all",
            "created_at": row["created_at"],
            "created_by": "",
            "revoked_at": row["revoked_at"],
        }
        for row in before
    ]
    if rows:
        op.bulk_insert(table, rows)
