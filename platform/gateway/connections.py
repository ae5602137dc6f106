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
"""Of one console: at most this many requests use the database at a time, the others wait."""
WAIT_S = 5.0
"""How long a request waits for a connection; after that it fails as if the database were away."""
SESSION = "-c jit=off -c max_parallel_workers_per_gather=0"
"""PostgreSQL's settings for these connections. Compiling a page's query, or starting processes for
it, takes longer than the query itself, and takes cores from token generation."""
IDLE_S = 60.0
"""After this time an unused connection is closed."""


def _forget(kept: Any) -> None:
    """Reset the connection state that a request has set: its actor (`act_as`)."""
    kept.execute(ACTING, [""])


@contextmanager
def kept_connections(most: int = MAX_CONNECTIONS) -> Iterator[None]:
    """While inside, requests share a pool of at most `most` ORM connections.

    PostgreSQL starts a process for each new connection, which reads the catalogue again: that took
    more of a page's time than its queries.
    """
    postgres = cast(DatabaseWrapper, connection)
    postgres.close()
    configured = postgres.settings_dict
    given = configured["OPTIONS"]
    configured["CONN_HEALTH_CHECKS"] = True  # a restart of the database leaves dead connections
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
