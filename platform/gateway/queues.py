"""Runs background jobs in a process of their own, until a signal arrives: workers and trainers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping

from procrastinate.contrib.django import app

from inference.process import announce
from inference.process.supervision import ended, supervised

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOP_S = 10
"""How long jobs may take to end after the signal."""


async def run(
    queues: Mapping[str, int],
    beside: Mapping[str, Callable[[], Awaitable[object]]],
    stopping: Callable[[], None] = lambda: None,
    stop_s: float = STOP_S,
    wait: bool = True,
) -> None:
    """Run jobs of each queue with its concurrency, and the endless work `beside` them, until a
    signal arrives and the jobs have ended, for which they have `stop_s`. `stopping` is called
    first. Without `wait` it ends once a queue has no more jobs."""
    worker_app = app.with_connector(app.connector.get_worker_connector())
    async with worker_app.open_async():
        workers = [
            asyncio.create_task(
                worker_app.run_worker_async(
                    queues=[queue],
                    concurrency=concurrency,
                    wait=wait,
                    install_signal_handlers=False,
                    shutdown_graceful_timeout=stop_s,
                )
            )
            for queue, concurrency in queues.items()
        ]
        loop = asyncio.get_running_loop()
        announce.ready()
        alive = loop.create_task(announce.keep_alive())
        others = [loop.create_task(supervised(name, work)) for name, work in beside.items()]

        def stop() -> None:
            announce.stopping()
            stopping()
            for number in SIGNALS:  # the next one ends the process
                loop.remove_signal_handler(number)
            for worker in workers:
                worker.cancel()

        for number in SIGNALS:
            loop.add_signal_handler(number, stop)
        await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
        alive.cancel()
        await ended(others)
        stop()  # also if one lost its database: the supervisor restarts it
        for result in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
