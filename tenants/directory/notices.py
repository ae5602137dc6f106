"""Receives change notices from the database (`sql/notices.sql`).

A dedicated connection LISTENs; a query every KEEPALIVE_S proves that it is alive. If it is lost, it
reconnects with back-off. LISTEN needs a session, so not a pooler in transaction mode.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Literal, NoReturn

import msgspec
import psycopg
import structlog

from tenants.database import conninfo

log = structlog.get_logger(__name__)

CHANNEL = "lorikeet"
LISTENER = "lorikeet-listener"
"""The application name of the listening connection, as `pg_stat_activity` shows it."""
KEEPALIVE_S = 1.5
ANSWER_S = 2.0
"""Their sum is below `invalidating_cache.FRESH_S`: one slow answer does not empty the caches."""
MAX_BACKOFF_S = 5.0


class Notice(msgspec.Struct, frozen=True):
    """One change.

    `digest` is that of an archived adapter version. The kind `limits` without a tenant means the
    platform's defaults, so it concerns all tenants; `engine` means an engine's credential.
    `member`, `user` and `session` mean that a person's permissions have changed: `ended` says that
    the membership or the account has ended, `session` is the digest of an ended session's key.
    `member` without a user means everybody who looks at the tenant.
    """

    kind: Literal[
        "key", "tenant", "adapters", "base_models", "archived", "limits",
        "member", "user", "session", "engine",
    ]  # fmt: skip
    tenant_id: int | None = None
    key_id: int | None = None
    digest: str | None = None
    user_id: int | None = None
    session: str | None = None
    ended: bool = False


_decoder = msgspec.json.Decoder(Notice)


def parse(payload: str) -> Notice | None:
    """Decode a notice; None if this release does not know its form."""
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError:
        return None


class NoticeListener:
    """Calls back, in the order of the events:

    `on_connected()`: it is listening (again); earlier notices may have been missed.
    `on_notice(notice)`: a change; None for one that is not understood.
    `on_alive(now)`: all changes committed before the monotonic time `now` have been delivered.
    """

    def __init__(
        self,
        *,
        on_connected: Callable[[], None],
        on_notice: Callable[[Notice | None], None],
        on_alive: Callable[[float], None],
    ) -> None:
        self._on_connected = on_connected
        self._on_notice = on_notice
        self._on_alive = on_alive
        self._failures = 0

    async def run(self) -> NoReturn:
        """Listen until cancelled."""
        while True:
            try:
                await self._listen()
            except (psycopg.Error, TimeoutError, OSError) as error:
                log.warning("listener_lost", error=str(error) or type(error).__name__)
            except Exception:  # a callback failed: reconnecting makes up for what it missed
                log.exception("listener_failed")
            await asyncio.sleep(self._backoff_s())

    def _backoff_s(self) -> float:
        # Jitter, so that gateways do not all reconnect to a restarted database at once.
        longest = min(MAX_BACKOFF_S, 0.1 * 2.0 ** min(self._failures, 10))
        self._failures += 1
        return longest * random.uniform(0.5, 1.0)

    async def _listen(self) -> None:
        async with asyncio.timeout(ANSWER_S):
            connection = await psycopg.AsyncConnection.connect(conninfo(LISTENER), autocommit=True)
        async with connection:
            async with asyncio.timeout(ANSWER_S):
                await connection.execute(f"LISTEN {CHANNEL}")
            self._on_connected()
            while True:
                await self._prove(connection)
                async for notify in connection.notifies(timeout=KEEPALIVE_S):
                    self._on_notice(parse(notify.payload))

    async def _prove(self, connection: psycopg.AsyncConnection[Any]) -> None:
        # The answer comes after every notice sent before the question.
        asked_at = time.monotonic()
        async with asyncio.timeout(ANSWER_S):
            await connection.execute("SELECT 1")
        self._failures = 0
        self._on_alive(asked_at)
