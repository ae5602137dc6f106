"""`manage.py worker`: background jobs."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import close_old_connections
from procrastinate.contrib.django import app

from gateway.schema import require_migrated
from inference.process import announce
from inference.process.logs import configure
from inference.process.supervision import ended, supervised
from tenants.adapters import parity, trials
from tenants.adapters.jobs import UPLOADS
from tenants.batches import jobs as batches
from tenants.batches.runner import BatchRunner
from tenants.notifications import sending
from tenants.offboarding import jobs as offboarding
from tenants.rollouts import pool_checks

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Command(BaseCommand):
    help = (
        "Run one worker process: it reads, checks and probes uploads, cleans up, runs "
        "batches, drives rollouts, exports tenants and sends notifications. Any number of "
        "them may run; the others take over the jobs of one that is killed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--concurrency",
            type=int,
            default=2,
            help="maximum number of concurrent jobs in this process (%(default)s)",
        )
        parser.add_argument(
            "--upload-concurrency",
            type=int,
            default=2,
            help=(
                "maximum number of concurrent checks of uploads, in addition to these "
                "jobs (%(default)s)"
            ),
        )
        parser.add_argument(
            "--trial-concurrency",
            type=int,
            default=2,
            help=(
                "maximum number of adapters being tested on new revisions, in addition to "
                "these jobs (%(default)s)"
            ),
        )

        parser.add_argument(
            "--batch-concurrency",
            type=int,
            default=2,
            help=(
                "maximum number of batch files being read or written, in addition to "
                "these jobs (%(default)s)"
            ),
        )

        parser.add_argument(
            "--offboarding-concurrency",
            type=int,
            default=1,
            help=(
                "maximum number of tenants being exported or deleted, in addition to these jobs "
                "(%(default)s)"
            ),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        require_migrated()
        configure("worker", settings.LOG_LEVEL)
        queues = {
            "default": options["concurrency"],
            UPLOADS: options["upload_concurrency"],
            trials.QUEUE: options["trial_concurrency"],
            batches.QUEUE: options["batch_concurrency"],
            offboarding.QUEUE: options["offboarding_concurrency"],
        }
        parity.prepare_first()
        asyncio.run(_work(queues))


async def _work(queues: dict[str, int]) -> None:
    """Run jobs of each queue with its concurrency, until a signal arrives and they have ended."""
    worker_app = app.with_connector(app.connector.get_worker_connector())
    async with worker_app.open_async():
        workers = [
            asyncio.create_task(
                worker_app.run_worker_async(
                    queues=[queue],
                    concurrency=concurrency,
                    install_signal_handlers=False,
                    shutdown_graceful_timeout=10,
                )
            )
            for queue, concurrency in queues.items()
        ]
        loop = asyncio.get_running_loop()
        announce.ready()
        alive = loop.create_task(announce.keep_alive())
        beside = [
            loop.create_task(supervised(name, work))
            for name, work in (("pools", _check_pools), ("notifications", sending.send))
        ]
        beside.append(loop.create_task(BatchRunner(settings.WORKER_TOKEN).run()))

        def stop() -> None:
            announce.stopping()
            for number in SIGNALS:  # the next one ends the process
                loop.remove_signal_handler(number)
            for worker in workers:
                worker.cancel()

        for number in SIGNALS:
            loop.add_signal_handler(number, stop)
        await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
        alive.cancel()
        await ended(beside)
        stop()  # also if one lost its database: the supervisor restarts it
        for result in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


async def _check_pools() -> None:
    """Check the pools periodically, until cancelled."""
    while True:
        await asyncio.to_thread(_check_pools_once)
        await asyncio.sleep(pool_checks.EVERY_S)


def _check_pools_once() -> None:
    try:
        pool_checks.check_pools()
    finally:
        close_old_connections()
