"""Whether the database has this release's schema."""

from __future__ import annotations

from django.core.management.base import CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import OperationalError


def require_migrated() -> None:
    """Require that all migrations are applied.

    Raises:
        CommandError: some are not, or the database cannot be reached.
    """
    try:
        executor = MigrationExecutor(connection)
    except OperationalError as error:
        raise CommandError(
            f"cannot connect to PostgreSQL (LORIKEET_DATABASE_URL): {error}"
        ) from None
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        raise CommandError(
            f"The database lacks {len(missing)} migrations. Run `manage.py migrate` first."
        )
