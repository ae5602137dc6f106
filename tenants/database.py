"""Connections and queries of the token path, which bypass the ORM and use psycopg's asynchronous
pool."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import psycopg
import structlog
from django.conf import settings
from psycopg.conninfo import make_conninfo
from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool

from inference.errors import Unavailable

log = structlog.get_logger(__name__)
R = TypeVar("R")
Values = Sequence[Any] | Mapping[str, Any]

ANSWER_S = 3.0
"""Time limit of a query; beyond it the caller gets `Unavailable` and may try again."""
START_S = 10.0
CONNECT_S = 5
RECONNECT_S = 1.0
"""How long the pool tries to restore a lost connection; after that the next query tries. The pauses
between attempts double: given more time, the pool would pause after the database's return for as
long as it was away."""
MAX_CONNECTIONS = 4
MAX_WAITING = 200
"""Queries waiting for a connection; beyond it the answer is an immediate 503."""


def conninfo(application: str) -> str:
    """libpq's connection string for Django's default database, with this application name."""
    configured: dict[str, Any] = settings.DATABASES["default"]
    parts: dict[str, Any] = {
        "dbname": configured["NAME"],
        "user": configured["USER"],
        "password": configured["PASSWORD"],
        "host": configured["HOST"],
        "port": configured["PORT"],
    }
    options = {key: value for key, value in configured["OPTIONS"].items() if key != "pool"}
    given = {key: value for key, value in parts.items() if value}
    return make_conninfo("", **{**given, **options, "application_name": application})


class Database:
    """Each query raises `Unavailable` if it fails or takes longer than `answer_s`."""

    def __init__(self, name: str, answer_s: float = ANSWER_S) -> None:
        """`name` is used in logs and statistics."""
        self._name, self._answer_s = name, answer_s

    async def open(self, timeout_s: float = START_S) -> None:
        """Connect.

        Raises:
            psycopg.OperationalError: the database cannot be reached in that time.
        """
        self._pool = AsyncConnectionPool(
            conninfo("lorikeet"),
            kwargs={"autocommit": True, "connect_timeout": CONNECT_S},
            min_size=1,
            max_size=MAX_CONNECTIONS,
            max_waiting=MAX_WAITING,
            timeout=self._answer_s,
            reconnect_timeout=timeout_s,
            # A restarted database leaves dead connections in the pool: replace them unnoticed.
            check=AsyncConnectionPool.check_connection,
            name=self._name,
            open=False,
        )
        try:
            await self._pool.open(wait=True, timeout=timeout_s)
        except psycopg.OperationalError:
            await self._pool.close()
            raise
        self._pool.reconnect_timeout = RECONNECT_S

    async def close(self) -> None:
        await self._pool.close()

    async def rows(
        self, kind: type[R], query: str, values: Values = (), *, binary: bool = False
    ) -> list[R]:
        """The query's rows, each as a `kind`. `binary` is for large `bytea` columns."""
        try:
            async with (
                asyncio.timeout(self._answer_s),
                self._pool.connection() as connection,
                connection.cursor(binary=binary, row_factory=class_row(kind)) as cursor,
            ):
                return await (await cursor.execute(query, values)).fetchall()
        except (psycopg.Error, TimeoutError) as error:
            raise self._unavailable(error) from error

    async def execute(self, query: str, values: Values = ()) -> int:
        """Change rows; returns how many."""
        try:
            async with asyncio.timeout(self._answer_s), self._pool.connection() as connection:
                return (await connection.execute(query, values)).rowcount
        except (psycopg.Error, TimeoutError) as error:
            raise self._unavailable(error) from error

    async def execute_all(self, statements: Sequence[str], values: Values) -> int:
        """Change rows by several statements in one transaction, each with the same values; returns
        how many rows the last one changed."""
        try:
            async with (
                asyncio.timeout(self._answer_s),
                self._pool.connection() as connection,
                connection.transaction(),
            ):
                changed = 0
                for statement in statements:
                    changed = (await connection.execute(statement, values)).rowcount
                return changed
        except (psycopg.Error, TimeoutError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Unavailable:
        reason = str(error) or type(error).__name__
        log.warning("database_unavailable", pool=self._name, error=reason)
        return Unavailable(retry_after_s=1.0)
