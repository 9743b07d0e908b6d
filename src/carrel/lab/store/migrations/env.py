"""Alembic's entry: the connection comes from `carrel.lab.store.schema.upgrade`."""

from alembic import context

from carrel.lab.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transaction_per_migration=False,
)
context.run_migrations()
