"""`manage.py worker`: background jobs."""

from __future__ import annotations

import asyncio
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import close_old_connections

from gateway.queues import run
from gateway.schema import require_migrated
from inference.process.logs import configure
from tenants.adapters import parity, trials
from tenants.adapters.jobs import UPLOADS
from tenants.batches import jobs as batches
from tenants.batches.runner import BatchRunner
from tenants.notifications import sending
from tenants.offboarding import jobs as offboarding
from tenants.rollouts import pool_checks


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
        beside = {
            "pools": _check_pools,
            "notifications": sending.send,
            "batches": lambda: BatchRunner(settings.WORKER_TOKEN).run(),
        }
        asyncio.run(run(queues, beside))


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
