"""Keys and model names: `interfaces.directory.Directory` over PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import Any

from django.conf import settings

from inference.process.supervision import ended, supervised
from tenants.directory.cached import CachedDirectory
from tenants.directory.notices import NoticeListener
from tenants.directory.reader import Reader


class PostgresDirectory(CachedDirectory):
    """Use as an async context manager, which listens for changes."""

    def __init__(self) -> None:
        self._database = Reader()
        super().__init__(self._database, without_database_s=settings.KEYS_WITHOUT_DATABASE_S)
        self._listener = NoticeListener(
            on_connected=self.reconnected, on_notice=self.changed, on_alive=self.note_alive
        )
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> PostgresDirectory:
        """Connect and listen.

        Raises:
            psycopg.OperationalError: the database cannot be reached.
        """
        await self._database.open()
        for work in (self._listener.run, self.check_due, self.tick, self.tell_pins,
                     self.tell_pools, self.tell_engines):  # fmt: skip
            name = f"directory.{work.__name__}"
            self._tasks.append(asyncio.create_task(supervised(name, work), name=name))
        return self

    async def __aexit__(self, *_: object) -> None:
        await ended(self._tasks)
        await self.write_used()
        await self._database.close()
