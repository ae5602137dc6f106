"""`manage.py gateway`: one gateway process."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from types import FrameType
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import OperationalError

from inference import gc_tuning
from inference.environ import BadSetting, base_urls
from inference.gateway.hub import Hub
from inference.link.session import LOST_S
from inference.link.wire import MAX_FRAME_BYTES
from inference.logs import configure

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = (
        "Run one gateway process: REST API, engine websockets, management API and console. Any "
        "number of them may run behind a load balancer. The first SIGTERM or Ctrl-C lets open "
        "streams finish, the second ends them."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--host", default="127.0.0.1", help="address to listen on (%(default)s)"
        )
        parser.add_argument(
            "--port", type=int, default=8000, help="port to listen on (%(default)s)"
        )
        parser.add_argument(
            "--url",
            help="base URL under which engines and workers reach this process "
            "(GATEWAY_URL, else http://HOST:PORT)",
        )
        parser.add_argument(
            "--drain",
            type=float,
            default=30.0,
            metavar="SECONDS",
            help="longest wait for open streams at the end (%(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        _require_migrated_schema()
        settings.GATEWAY_URL = _own_url(options)
        tempfile.tempdir = settings.FILE_UPLOAD_TEMP_DIR  # where Django spools request bodies
        configure(f"gateway:{options['port']}", settings.LOG_LEVEL)
        _serve(options["host"], options["port"], options["drain"])


async def drain(hub: Hub, drain_s: float) -> None:
    """Wait until every request is settled, so long at most."""
    try:
        async with asyncio.timeout(drain_s):
            await hub.drained()
    except TimeoutError:
        log.warning("drain_cut_short", requests=hub.in_flight)


def _own_url(options: dict[str, Any]) -> str:
    given = options["url"] or os.environ.get("GATEWAY_URL")
    urls = base_urls(given or f"http://{options['host']}:{options['port']}")
    if len(urls) > 1:
        raise BadSetting(f"{given!r} names several gateways: --url must name this one")
    return urls[0]


def _require_migrated_schema() -> None:
    try:
        executor = MigrationExecutor(connection)
    except OperationalError as error:
        raise CommandError(f"PostgreSQL cannot be reached (DATABASE_URL): {error}") from None
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        raise CommandError(
            f"The database lacks {len(missing)} migrations: run `manage.py migrate` first."
        )


def _serve(host: str, port: int, drain_s: float) -> None:
    import uvicorn

    from gateway.asgi import application, hub

    class Server(uvicorn.Server):
        """Lets open streams finish before the engines' sockets are closed."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            gc_tuning.settle()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.force_exit = self.should_exit = hub.closing  # the second time
            hub.closing = True
            loop.call_soon_threadsafe(lambda: drains.append(loop.create_task(self.drain())))

        async def drain(self) -> None:
            await drain(hub, drain_s)
            self.should_exit = True

    drains: list[asyncio.Task[None]] = []
    server = Server(
        uvicorn.Config(
            application,
            host=host,
            port=port,
            loop="uvloop",
            http="httptools",
            ws="websockets-sansio",
            ws_max_size=MAX_FRAME_BYTES,
            ws_ping_interval=None,  # the engine link has its own heartbeat
            ws_per_message_deflate=False,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(LOST_S),
        )
    )
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        loop = runner.get_loop()
        runner.run(server.serve())
    if not server.started:
        raise CommandError("The gateway could not start; the log says why.")
