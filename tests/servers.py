"""uvicorn for tests that start hundreds of servers."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn

POLL_S = 0.005


class PromptServer(uvicorn.Server):
    """Ends within POLL_S of `should_exit`, and of its last connection. uvicorn looks ten times a
    second, which the tests waited for longer than for all else."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        busy = self.server_state
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while not self.force_exit and (busy.connections or busy.tasks):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            for task in busy.tasks:
                task.cancel()
        await self.lifespan.shutdown()
