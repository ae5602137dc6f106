"""`manage.py worker`: background jobs."""

from __future__ import annotations

import asyncio
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from procrastinate.contrib.django import app

from inference.logs import configure


class Command(BaseCommand):
    help = (
        "Run background jobs (validation and probing of uploaded adapters, cleaning up). Any "
        "number may run; a job of one that was killed is taken up by another."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--concurrency", type=int, default=2, help="jobs at once in this process (%(default)s)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        configure("worker", settings.LOG_LEVEL)
        asyncio.run(_work(options["concurrency"]))


async def _work(concurrency: int) -> None:
    worker_app = app.with_connector(app.connector.get_worker_connector())
    async with worker_app.open_async():
        await worker_app.run_worker_async(
            concurrency=concurrency, install_signal_handlers=True, shutdown_graceful_timeout=10
        )
