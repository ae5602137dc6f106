"""Real workers, in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections
from procrastinate.contrib.django import app
from procrastinate.periodic import PeriodicRegistry
from procrastinate.worker import Worker

from tenants.adapters.jobs import UPLOADS


def run_worker(*queues: str) -> None:
    """Run a worker until these queues, by default all, are empty."""
    async_to_sync(_work)(_worker(*queues, wait=False))


@contextmanager
def unpacking() -> Iterator[None]:
    """Run a worker of the uploads queue inside the context; clients wait for its results."""
    worker = _worker(UPLOADS, wait=True)
    thread = threading.Thread(target=lambda: asyncio.run(_work(worker)))
    thread.start()
    while worker.worker_id is None:  # stopped earlier, it may miss that
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def _worker(*queues: str, wait: bool) -> Worker:
    """A worker of these queues without periodic jobs."""
    own = app.with_connector(app.connector.get_worker_connector())
    own.periodic_registry = PeriodicRegistry()
    return Worker(
        own,
        queues=list(queues) or None,
        wait=wait,
        concurrency=2 if wait else 1,  # one at a time: a job may requeue another's
        install_signal_handlers=False,
        task_middleware=[_disconnected],
    )


async def _work(worker: Worker) -> None:
    async with worker.app.open_async():
        await worker.run()


def _disconnected(task: Callable[[], Any], *context: Any) -> Any:
    """Run a task and close its thread's connections, so that the test database can be dropped."""
    try:
        return task()
    finally:
        connections.close_all()
