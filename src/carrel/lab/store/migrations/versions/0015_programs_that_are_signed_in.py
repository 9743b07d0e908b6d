"""Programs that are signed in as somebody, and those that wait for it"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "sign_ins",
        sa.Column("token_id", number, sa.ForeignKey("tokens.id"), primary_key=True, autoincrement=False),
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        sa.Column("refresh", sa.String(64), nullable=False),
        sa.Column("previous", sa.String(64)),
        sa.Column("retry", sa.String(64)),
        sa.Column("ends_at", sa.Double(), nullable=False),
        sa.UniqueConstraint("family", name=op.f("uq_sign_ins_family")),
    )
    op.create_table(
        "access_tokens",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("token_id", number, sa.ForeignKey("sign_ins.token_id"), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
    )
    op.create_index(op.f("ix_access_tokens_token_id"), "access_tokens", ["token_id"])
    op.create_table(
        "device_codes",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("user_code", sa.String(64), nullable=False),
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("interval", sa.Integer(), nullable=False),
        sa.Column("polled_at", sa.Double()),
        sa.Column("decision", sa.String(16), server_default=sa.text("'none'"), nullable=False),
        sa.Column("subject", sa.String(255), sa.ForeignKey("users.subject")),
        sa.Column("account", sa.String(255)),
        sa.UniqueConstraint("user_code", name=op.f("uq_device_codes_user_code")),
    )
    op.create_table(
        "authorization_codes",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(255), sa.ForeignKey("users.subject"), nullable=False),
        sa.Column("account", sa.String(255)),
        sa.Column("redirect_uri", sa.String(255), nullable=False),
        sa.Column("challenge", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("token_id", number, sa.ForeignKey("tokens.id")),
    )
