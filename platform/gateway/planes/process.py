"""`manage.py gateway`: one gateway process. Django's applications are never loaded in it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

import psycopg
import structlog
from django.conf import settings

import tenants
from gateway import secret_links
from gateway.edge.refusals import SlowRefusals
from gateway.edge.websocket import SocketConnection
from gateway.planes.server import NotStarted, serve
from inference.gateway.hub import Hub
from inference.link.session import LOST_S
from inference.process.environ import BadSetting, base_urls
from inference.process.logs import configure
from tenants.database import conninfo

log = structlog.get_logger(__name__)

REFUSALS = (401,)
"""Statuses that answer guesses of keys and tokens. 429 is not delayed."""
LEAVE_S = 1.0
"""How long engines may take to confirm the requests that are left to them."""

HELP = (
    "Run one gateway process: the inference API, the websockets of engines and pages, "
    "health and metrics. Any number of them may run behind a load balancer. After the "
    "first SIGTERM or Ctrl-C open streams may finish; the second ends them."
)
MIGRATIONS = Path(str(tenants.__file__)).parent / "migrations"


def main(arguments: list[str]) -> None:
    """Run until a signal ends it.

    Raises:
        BadSetting: with what is wrong.
    """
    options = _parser().parse_args(arguments)
    settings.GATEWAY_URL = own_url(options)
    _require_migrated_schema()
    configure(f"gateway:{options.port}", settings.LOG_LEVEL, clean=secret_links.without_tokens)

    from gateway.planes.inference import InferenceParts, application

    parts = InferenceParts.configured()

    async def drained() -> None:
        parts.leaving.set()
        await asyncio.sleep(options.notice)
        parts.hub.close()
        await drain(parts.hub, options.drain)

    try:
        serve(
            SlowRefusals(application(parts), REFUSALS),
            options.host,
            options.port,
            graceful_s=int(LOST_S),
            drain=drained,
            ws=SocketConnection,
            ws_ping_interval=None,  # the engine link has its own heartbeat
            ws_per_message_deflate=False,
        )
    except NotStarted:
        sys.exit("lorikeet: The gateway could not start. See the log for the reason.")


async def drain(hub: Hub, drain_s: float) -> None:
    """Wait for at most `drain_s` until every request is settled; then leave the rest to their
    engines, which keep some of them for other gateways."""
    try:
        async with asyncio.timeout(drain_s):
            await hub.drained()
    except TimeoutError:
        log.warning("drain_cut_short", requests=hub.in_flight)
        hub.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await hub.drained()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("manage.py gateway", description=HELP)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=8000, help="port to listen on (%(default)s)")
    add(
        "--url",
        help=(
            "base URL at which engines, workers and consoles reach this process "
            "(LORIKEET_GATEWAY_URL, or else http://HOST:PORT)"
        ),
    )
    add(
        "--drain",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help=(
            "how long to wait for open streams at shutdown; then engines continue those "
            "with an idempotency key for another gateway (%(default)s)"
        ),
    )
    add(
        "--notice",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help=(
            "how long to keep serving at shutdown while /readyz reports it, so that load "
            "balancers stop sending requests (%(default)s)"
        ),
    )
    return parser


def own_url(options: argparse.Namespace) -> str:
    """The base URL of this process.

    Raises:
        BadSetting: several are named, or none.
    """
    given = options.url or os.environ.get("LORIKEET_GATEWAY_URL")
    urls = base_urls(given or f"http://{options.host}:{options.port}")
    if len(urls) > 1:
        raise BadSetting(f"{given!r} has several URLs: set --url to that of this gateway")
    return urls[0]


def _require_migrated_schema() -> None:
    """Require this release's migrations of `tenants`; the console checks Django's own."""
    ours = {file.stem for file in MIGRATIONS.glob("[0-9]*.py")}
    try:
        with psycopg.connect(conninfo("lorikeet"), connect_timeout=10) as connection:
            found = connection.execute("SELECT name FROM django_migrations WHERE app = 'tenants'")
            missing = ours - {name for (name,) in found}
    except psycopg.errors.UndefinedTable:
        missing = ours
    except psycopg.OperationalError as error:
        raise BadSetting(f"cannot connect to PostgreSQL (LORIKEET_DATABASE_URL): {error}") from None
    if missing:
        raise BadSetting(
            f"The database lacks {len(missing)} migrations. Run `manage.py migrate` first."
        )
