"""The console's connections to PostgreSQL, kept from one request to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from django.db import connection
from django.db.backends.postgresql.base import DatabaseWrapper

from tenants.database import RECONNECT_S
from tenants.models.audit import ACTING

MAX_CONNECTIONS = 32
"""Of one console; as many requests read or write at a time, the others wait for them."""
WAIT_S = 5.0
"""How long a request waits for a connection; then the database is unavailable."""
SESSION = "-c jit=off -c max_parallel_workers_per_gather=0"
"""PostgreSQL's settings for them. To compile a page's query, or to start processes for it, takes
longer than the query, and cores that tokens need."""
IDLE_S = 60.0
"""After which one that was not needed is closed."""


def _forget(kept: Any) -> None:
    """What a request says of itself to its connection ends with it: who acts (`act_as`)."""
    kept.execute(ACTING, [""])


@contextmanager
def kept_connections(most: int = MAX_CONNECTIONS) -> Iterator[None]:
    """The ORM's connections outlive their request while inside; there are so many at most.

    PostgreSQL starts a process for each new one, which reads the catalogue anew: that took more
    of a page's time than its queries did.
    """
    postgres = cast(DatabaseWrapper, connection)
    postgres.close()
    configured = postgres.settings_dict
    given = configured["OPTIONS"]
    configured["CONN_HEALTH_CHECKS"] = True  # a database that was restarted leaves dead ones
    pool = {
        "min_size": 1,
        "max_size": most,
        "max_idle": IDLE_S,
        "timeout": WAIT_S,
        "reconnect_timeout": RECONNECT_S,
        "reset": _forget,
    }
    session = f"{SESSION} {given.get('options', '')}"
    configured["OPTIONS"] = given | {"pool": pool, "options": session}
    try:
        yield
    finally:
        postgres.close()
        postgres.close_pool()
        configured["OPTIONS"] = given
