"""Account managers and operators; jobs that members of their account may read"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_BEFORE = "role IN ('user', 'admin')"
_ROLES = "role IN ('user', 'manager', 'operator', 'admin')"


def upgrade() -> None:
    bind = op.get_bind()
    if bind.dialect.name == "sqlite":
        # Making the table anew would leave tokens and jobs without their users for a moment, which foreign keys forbid. SQLite's
        # own way for a check that only widens (https://www.sqlite.org/lang_altertable.html, "Making Other Kinds Of Schema Changes"):
        version = bind.execute(sa.text("PRAGMA schema_version")).scalar_one()
        op.execute("PRAGMA writable_schema = ON")
        change = "UPDATE sqlite_schema SET sql = replace(sql, :before, :after) WHERE type = 'table' AND name = 'users'"
        bind.execute(sa.text(change), {"before": _BEFORE, "after": _ROLES})
        op.execute(f"PRAGMA schema_version = {version + 1}")
        op.execute("PRAGMA writable_schema = OFF")
    else:
        op.drop_constraint(op.f("ck_users_role"), "users", type_="check")
        op.create_check_constraint(op.f("ck_users_role"), "users", _ROLES)
    op.add_column("jobs", sa.Column("visible", sa.String(length=16), server_default=sa.text("'owner'"), nullable=False))
