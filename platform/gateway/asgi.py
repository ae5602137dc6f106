"""One gateway process, wired: the token path as plain ASGI beside Django, in Channels' router."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import Any

import structlog
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django_app: Any = get_asgi_application()

from channels.db import database_sync_to_async  # noqa: E402
from channels.layers import get_channel_layer  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402
from django.db import connection  # noqa: E402
from django.db.utils import Error as DatabaseError  # noqa: E402
from django.urls import URLPattern, re_path  # noqa: E402
from servestatic import ServeStaticASGI  # noqa: E402

from frontend import process  # noqa: E402
from frontend.live import history, tail  # noqa: E402
from frontend.live.board import Board  # noqa: E402
from frontend.live.socket import LiveSocket  # noqa: E402
from frontend.playground.answers import Playground  # noqa: E402
from frontend.playground.socket import PlaygroundSocket  # noqa: E402
from frontend.sockets import guarded  # noqa: E402
from gateway.cookies import CookieLimit  # noqa: E402
from gateway.metrics import Metrics  # noqa: E402
from inference.gateway.dispatcher import Dispatcher  # noqa: E402
from inference.gateway.exchange import Receive, Scope, Send  # noqa: E402
from inference.gateway.health import Health  # noqa: E402
from inference.gateway.http import OpenAIServer  # noqa: E402
from inference.gateway.hub import Hub  # noqa: E402
from inference.gateway.sockets import EngineProbe, EngineSocket, NoSocket  # noqa: E402
from inference.link.wire import ModelInfo  # noqa: E402
from tenants.adapters.files import AdapterFiles  # noqa: E402
from tenants.adapters.uploads.guard import BodyGuard  # noqa: E402
from tenants.adapters.uploads.intake import Intake, without_body  # noqa: E402
from tenants.answers import PostgresAnswers  # noqa: E402
from tenants.api.endpoints import engines  # noqa: E402
from tenants.billing.ledger import Ledger  # noqa: E402
from tenants.database import Database  # noqa: E402
from tenants.directory.auth import PostgresDirectory  # noqa: E402
from tenants.limits import consumption  # noqa: E402
from tenants.limits.limiter import configured  # noqa: E402
from tenants.limits.spent import LedgerSpent  # noqa: E402
from tenants.models import GatewayProcess, pools  # noqa: E402

log = structlog.get_logger(__name__)

BEAT_S = 3.0
"""How often this process says in PostgreSQL that it lives."""

directory = PostgresDirectory()
ledger = Ledger()
answers = PostgresAnswers()
_budgets = Database("limits")
limiter = configured(LedgerSpent(_budgets))
board = Board(layer=get_channel_layer() if settings.REDIS_URL else None)
hub = Hub(settings.GATEWAY_URL, settings.ENGINE_TOKEN, ledger, limiter)
ledger.on_written(tail.listener(board.wanted, board.publish))
directory.on_revoked(hub.end_streams)
directory.on_archived(hub.unload)
directory.on_pinned(hub.set_pins)
engines.snapshot_source = hub.snapshot
process.limits_degraded = lambda: limiter.degraded
consumption.counters = limiter
_tasks: set[asyncio.Task[None]] = set()


async def _database_answers() -> bool:
    def ask() -> bool:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        except DatabaseError:
            return False
        return True

    answers: bool = await database_sync_to_async(ask)()
    return answers


async def _engine_connected() -> bool:
    return bool(hub.snapshot()) and not hub.closing


async def _limits_hold() -> bool:
    """Not where Redis is away and requests are refused for that."""
    return not limiter.degraded or settings.LIMITS_WITHOUT_REDIS == "local"


def _note_model(info: ModelInfo) -> None:
    task = asyncio.create_task(_upsert_model(info))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _upsert_model(info: ModelInfo) -> None:
    try:
        await database_sync_to_async(pools.note)(info)
    except DatabaseError as error:
        log.error("base_model_not_noted", model=info.name, error=str(error))


def _beat_once() -> set[str]:
    """Say that this process lives; the URLs of all that do."""
    GatewayProcess.objects.beat(hub.gateway_id)
    return set(GatewayProcess.objects.alive().values_list("url", flat=True))


async def _beat() -> None:
    """Beat, and pass the list of live gateways on to the engines."""
    while True:
        try:
            urls = sorted(await database_sync_to_async(_beat_once)() | {hub.gateway_id})
            if len(urls) > 1 and urls != hub.gateways and not settings.REDIS_URL:
                log.error("limits_not_shared", gateways=urls, reason="REDIS_URL is not set")
            hub.set_gateways(urls)
        except DatabaseError as error:
            log.warning("heartbeat_failed", error=str(error))
        await asyncio.sleep(BEAT_S)


async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    """Start what lives as long as the process; stop it when its requests are settled."""
    await receive()
    async with AsyncExitStack() as stack:
        try:
            await _budgets.open()
            stack.push_async_callback(_budgets.close)
            for lasting in (ledger, answers, limiter, directory, board):
                await stack.enter_async_context(lasting)
        except Exception as error:
            log.exception("start_failed")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        hub.on_model(_note_model)
        # Pages run in threads, and the hub belongs to this loop.
        loop = asyncio.get_running_loop()
        process.drain_engine = lambda engine_id: loop.call_soon_threadsafe(hub.drain, engine_id)
        for endless in (_beat(), history.keep()):
            stack.callback(asyncio.create_task(endless).cancel)
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await database_sync_to_async(GatewayProcess.objects.forget)(hub.gateway_id)
    await send({"type": "lifespan.shutdown.complete"})


def _route(pattern: str, app: Any) -> URLPattern:
    """Channels' router takes ASGI applications where Django's types expect views."""
    route: URLPattern = re_path(pattern, app)
    return route


_dispatcher = Dispatcher(hub, directory, limiter, timeout_s=settings.REQUEST_TIMEOUT_S)
_inference = OpenAIServer(
    _dispatcher, directory, limiter, answers=answers, max_body_bytes=settings.MAX_REQUEST_BYTES
)
_playground = Playground(_dispatcher, directory, max_body_bytes=settings.MAX_REQUEST_BYTES)
_health = Health(
    {"database": _database_answers, "engine": _engine_connected, "limits": _limits_hold}
)
_metrics = Metrics(settings.METRICS_TOKEN, hub, ledger, limiter)
_console = ServeStaticASGI(django_app, root=str(settings.STATIC_ROOT), prefix="static")

_routes = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                _route(r"^v1/(?!organization/|usage/)", _inference),
                _route(r"^v1/", without_body(django_app)),
                _route(r"^(healthz|readyz)$", _health),
                _route(r"^metrics$", _metrics),
                _route(r"^engine/probe$", EngineProbe(hub)),
                _route(r"^engine/adapters/", AdapterFiles(settings.ENGINE_TOKEN)),
                _route(r"", BodyGuard(Intake(_console), directory)),
            ]
        ),
        "websocket": URLRouter(
            [
                _route(r"^ws/engine$", EngineSocket(hub)),
                _route(r"^ws/live$", guarded(LiveSocket(board))),
                _route(
                    r"^ws/playground/(?P<slug>[a-z0-9-]+)$", guarded(PlaygroundSocket(_playground))
                ),
                _route(r"", NoSocket()),
            ]
        ),
        "lifespan": lifespan,
    }
)

application = CookieLimit(_routes)
