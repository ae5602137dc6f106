"""The inference plane: the parts of one gateway process, and the addresses that it serves.

The token path, the websockets, health and metrics, as plain ASGI in Channels' router. It has no
sessions, cookies, views or Django models: requests of browsers, uploads and operators run in other
processes (`gateway.planes.control`). Of Django it uses only the settings and the file storage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import structlog
from channels.layers import get_channel_layer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings

from frontend.live import tail
from frontend.live.board import Board
from frontend.live.signals import Signals
from frontend.live.socket import LiveSocket
from frontend.playground.answers import Playground
from frontend.playground.socket import PlaygroundSocket
from frontend.sockets import tickets
from frontend.sockets.gate import Gate, Origins
from frontend.sockets.redeeming import PostgresRedeemer
from frontend.sockets.tickets import TicketSigner
from gateway.edge.cors import Cors
from gateway.planes.asgi import Lifespan, route
from gateway.planes.forward import ROUTE, Forward
from gateway.planes.internal import Internal
from gateway.planes.monitoring import demand as demand_page
from gateway.planes.monitoring import overflow
from gateway.planes.monitoring.demand import DemandPage
from gateway.planes.monitoring.metrics import MetricsPage
from gateway.planes.recording import content, outcomes, traffic
from inference import tracing
from inference.errors import InferenceError, NotFound, Unavailable
from inference.gateway import http
from inference.gateway.dispatcher import Dispatcher
from inference.gateway.exchanges.callers import Callers
from inference.gateway.exchanges.exchange import Exchange, Receive, Scope, Send
from inference.gateway.fleet.demand import FleetDemand
from inference.gateway.fleet.dispatches import Dispatches
from inference.gateway.health import Health
from inference.gateway.http import OpenAIServer
from inference.gateway.hub import Hub
from inference.gateway.lines.server import Lines
from inference.gateway.measuring import history
from inference.gateway.measuring.busiest import Busiest
from inference.gateway.measuring.history import History
from inference.gateway.measuring.measures import Measures
from inference.gateway.measuring.outcomes import Refusal
from inference.gateway.requests.held import Holding
from inference.gateway.responses_socket import ResponsesSocket
from inference.gateway.routing.overflow import Overflow
from inference.gateway.routing.prefill import PrefillPolicy
from inference.gateway.sockets import EngineProbe, EngineSocket, EngineStartFailed, NoSocket
from inference.link.engine_info import ModelInfo
from inference.process.supervision import in_background, supervised
from inference.tracing import Tracer
from tenants.adapters.files import AdapterFiles
from tenants.answers import PostgresAnswers
from tenants.billing.ledger import Ledger
from tenants.content.conversations import PostgresConversations
from tenants.content.responses import PostgresResponses
from tenants.content.store import PostgresContents
from tenants.database import Database
from tenants.directory.auth import PostgresDirectory
from tenants.directory.engines import KnownEngines
from tenants.directory.registry import DirectoryRegistry
from tenants.limits.limiter import StoreLimiter, configured
from tenants.limits.spent import LedgerSpent
from tenants.naming import ISOLATION_TENANTS

log = structlog.get_logger(__name__)

CHECKED_S = 2.0
"""How long the checks of the last answers may take at shutdown."""
BEAT_S = 3.0
"""How often this process reports in PostgreSQL that it is alive."""


@dataclass(frozen=True)
class InferenceParts:
    """Everything that lives as long as a gateway process, passed to the code that needs it."""

    hub: Hub
    engines: KnownEngines
    dispatches: Dispatches
    ledger: Ledger
    limiter: StoreLimiter
    directory: PostgresDirectory
    answers: PostgresAnswers
    contents: PostgresContents
    registry: DirectoryRegistry
    budgets: Database
    gate: Gate
    history: History
    board: Board
    forward: Forward
    demand: FleetDemand
    tracer: Tracer | None
    leaving: asyncio.Event
    """Set when this process is about to end, so that clients go to other gateways if they can."""

    @classmethod
    def configured(cls) -> InferenceParts:
        """The parts, as configured in the settings."""
        ledger, directory, registry = Ledger(), PostgresDirectory(), DirectoryRegistry()
        budgets = Database("limits")
        limiter = configured(LedgerSpent(budgets))
        engines, dispatches = KnownEngines(), Dispatches(settings.DISPATCH_KEY)
        hub = Hub(
            settings.GATEWAY_URL,
            ledger,
            limiter,
            engines=engines,
            dispatches=dispatches,
            measures=Measures(busiest=Busiest(settings.METRICS_TENANTS)),
            holding=Holding(
                seconds=settings.QUEUE_WITHOUT_ENGINE_S,
                requests=settings.HELD_REQUESTS,
                bytes=settings.HELD_BYTES,
            ),
            kept_bytes=settings.MOVABLE_BYTES,
            overflow=Overflow(settings.OVERFLOW_WAIT_S),
            prefill=PrefillPolicy(settings.PREFILL_TOKENS, settings.PREFILL_WAIT_S),
            uncounted=frozenset(ISOLATION_TENANTS),
        )
        gate = Gate(
            TicketSigner(settings.INTERNAL_TOKEN),
            PostgresRedeemer(registry),
            Origins(settings.CONSOLE_URL, settings.ALLOWED_HOSTS, settings.CSRF_TRUSTED_ORIGINS),
            # Twice a request's limit, so that a larger request gets its own error message.
            max_message_bytes=2 * settings.MAX_REQUEST_BYTES,
        )
        directory.on_revoked(hub.end_streams)
        directory.on_engines(engines.learn)
        engines.on_change(hub.check_credentials)
        directory.on_archived(hub.unload)
        directory.on_pinned(hub.set_pins)
        directory.on_pools(hub.set_pools)
        directory.on_people(gate.changed)
        history = History()
        demand = FleetDemand(hub.demand, monotonic())
        signals = Signals(hub.snapshot, history)
        board = Board(signals, get_channel_layer() if settings.REDIS_URL else None)
        directory.on_tenant(signals.changed)
        limiter.on_reserved(board.began)
        ledger.on_written(tail.listener(board.ended))
        return cls(
            hub=hub,
            engines=engines,
            dispatches=dispatches,
            ledger=ledger,
            limiter=limiter,
            directory=directory,
            answers=PostgresAnswers(),
            contents=PostgresContents(),
            registry=registry,
            budgets=budgets,
            gate=gate,
            history=history,
            board=board,
            forward=Forward(
                settings.CONSOLE_INTERNAL_URL,
                directory.authenticate,
                settings.FORWARDED_BYTES_PER_S,
            ),
            demand=demand,
            tracer=tracing.start("lorikeet-gateway", settings.GATEWAY_URL),
            leaving=asyncio.Event(),
        )


class RunningPlane(Lifespan):
    """Starts what lives as long as the process; stops it after its requests are settled."""

    def __init__(self, parts: InferenceParts) -> None:
        self._parts = parts
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, stack: AsyncExitStack) -> None:
        parts = self._parts
        for database in (parts.budgets, parts.registry, parts.contents):
            await database.open()
            stack.push_async_callback(database.close)
        if parts.tracer is not None:
            stack.push_async_callback(asyncio.to_thread, parts.tracer.close)
        stack.push_async_callback(self._forget)
        for lasting in (
            parts.ledger, parts.answers, parts.limiter, parts.directory, parts.board,
            parts.forward,
        ):  # fmt: skip
            await stack.enter_async_context(lasting)
        parts.hub.on_model(self._note_model)
        parts.directory.on_tenant(self._renew)
        sampling = partial(history.keep, parts.history, parts.hub.snapshot)
        sharing = partial(demand_page.share, parts.demand, parts.hub, parts.registry)
        outcome_arguments = parts.hub.outcomes, parts.registry, self._report_refused
        stack.push_async_callback(outcomes.write, *outcome_arguments)
        stack.push_async_callback(content.write, parts.hub.contents, parts.contents)
        stack.push_async_callback(parts.hub.structures.finish, CHECKED_S)
        for name, endless in (
            ("heartbeat", self._beat), ("history", sampling), ("demand", sharing),
            ("traffic", partial(traffic.share, parts.hub, parts.registry)),
            ("presence", partial(traffic.note_presence, parts.hub, parts.registry)),
            ("outcomes", partial(outcomes.keep, *outcome_arguments)),
            ("content", partial(content.keep, parts.hub.contents, parts.contents)),
            ("overflow", partial(
                overflow.follow, parts.hub, parts.registry, settings.OVERFLOW_TOKENS_A_DAY)),
        ):  # fmt: skip
            stack.callback(asyncio.create_task(supervised(name, endless), name=name).cancel)

    async def _beat(self) -> None:
        """Send heartbeats, and pass the list of live gateways on to the engines."""
        hub = self._parts.hub
        while True:
            try:
                urls = sorted({*await self._parts.registry.beat(hub.gateway_id), hub.gateway_id})
                if len(urls) > 1 and urls != hub.gateways and not settings.REDIS_URL:
                    log.error(
                        "limits_not_shared", gateways=urls, reason="LORIKEET_REDIS_URL is not set"
                    )
                hub.set_gateways(urls)
                await self._note_stopped()
                await self._parts.registry.saw_engines(hub.credentials)
            except Unavailable as error:
                log.warning("heartbeat_failed", error=str(error))
            await asyncio.sleep(BEAT_S)

    def _report_refused(self, refusals: Sequence[Refusal]) -> None:
        """Notify pages that follow requests of refused ones."""
        for ended in tail.refused_by_key(refusals):
            self._parts.board.ended(ended)

    async def _note_stopped(self) -> None:
        stopped = set(self._parts.hub.stopped)
        await self._parts.registry.engines_stopped(stopped)
        self._parts.hub.stopped -= stopped

    async def _forget(self) -> None:
        try:
            await self._note_stopped()
            await self._parts.registry.forget(self._parts.hub.gateway_id)
        except Unavailable:
            log.warning("heartbeat_left", reason="the database is unavailable")

    def _note_model(self, info: ModelInfo) -> None:
        in_background(self._tasks, self._write_model(info))

    def _renew(self, tenant_id: int | None) -> None:
        hub, directory = self._parts.hub, self._parts.directory
        in_background(self._tasks, hub.refresh_targets(tenant_id, directory))

    async def _write_model(self, info: ModelInfo) -> None:
        try:
            await self._parts.registry.note_model(info)
        except Unavailable as error:
            log.error("base_model_not_noted", model=info.name, error=str(error))


class ToConsole:
    """Redirects a browser from `/` to the console; answers 404 to all other unknown addresses."""

    def __init__(self, api_url: str, console_url: str) -> None:
        self._elsewhere = api_url != console_url
        self._location = f"{console_url}/".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            if exchange.path != "/" or not self._elsewhere:
                raise NotFound(f"There is no resource at {exchange.path}. The API is under /v1.")
            exchange.require_method("GET", "HEAD")
        except InferenceError as error:
            return await exchange.fail(error)
        location = (b"location", self._location)
        await exchange.begin(302, [location, (b"content-length", b"0")])
        await exchange.write(b"", more=False)


def _health(parts: InferenceParts) -> Health:
    async def open_() -> bool:
        """False while the process ends or is about to."""
        return not (parts.leaving.is_set() or parts.hub.closing)

    async def keys() -> bool:
        """Recently seen keys remain valid for a while without the database."""
        return parts.directory.serves()

    async def limits() -> bool:
        """False if Redis is away and requests are refused for that."""
        return not parts.limiter.degraded or settings.LIMITS_WITHOUT_REDIS == "local"

    async def engine() -> bool:
        return bool(parts.hub.snapshot())

    return Health({"open": open_, "keys": keys, "limits": limits}, {"engine": engine})


def application(parts: InferenceParts) -> Any:
    """The ASGI application."""
    hub, limiter, directory = parts.hub, parts.limiter, parts.directory
    dispatcher = Dispatcher(
        hub,
        directory,
        limiter,
        timeout_s=settings.REQUEST_TIMEOUT_S,
        grace_s=settings.WITHOUT_GATEWAY_S,
        tracer=parts.tracer,
    )
    most = settings.MAX_REQUEST_BYTES
    inference = OpenAIServer(
        dispatcher,
        directory,
        limiter,
        answers=parts.answers,
        stored=PostgresResponses(parts.contents, most=settings.TENANT_BACKGROUND_RESPONSES),
        conversations=PostgresConversations(parts.contents),
        secret=settings.INTERNAL_TOKEN,
        max_body_bytes=most,
        currency=settings.CURRENCY,
    )
    responses = ResponsesSocket(
        inference,
        Callers(directory, limiter),
        hub.closed,
        kept_bytes=settings.CONVERSATION_BYTES,
    )
    answers = Playground(dispatcher, directory, max_body_bytes=most)
    playground = PlaygroundSocket(answers, hub.closed)
    routes = [
        route(ROUTE, Cors(parts.forward, settings.CORS_ORIGINS)),
        route(http.ROUTE, Cors(inference, settings.CORS_ORIGINS)),
        route(r"^(healthz|health|readyz|fleetz)$", _health(parts)),
        route(
            r"^metrics$",
            MetricsPage(
                settings.METRICS_TOKEN,
                hub,
                parts.ledger,
                limiter,
                parts.registry,
                parts.demand,
                settings.VAR,
            ),
        ),
        route(r"^demand$", DemandPage(settings.METRICS_TOKEN, hub, parts.demand)),
        route(r"^internal/", Internal(settings.INTERNAL_TOKEN, hub, limiter, parts.history)),
        route(r"^engine/failed$", EngineStartFailed(hub, parts.engines)),
        route(r"^engine/probe$", EngineProbe(hub, settings.WORKER_TOKEN)),
        route(r"^engine/adapters/", AdapterFiles(parts.engines, parts.dispatches, parts.registry)),
        route(r"", ToConsole(settings.API_URL, settings.CONSOLE_URL)),
    ]
    sockets = [
        route(r"^v1/responses$", responses),
        route(r"^ws/engine$", EngineSocket(hub, parts.engines)),
        route(
            r"^ws/lines$",
            Lines(
                dispatcher,
                directory,
                hub,
                inference.background,
                token=settings.WORKER_TOKEN,
                secret=settings.INTERNAL_TOKEN,
                max_body_bytes=most,
            ),
        ),
        route(r"^ws/live$", parts.gate.guarded(tickets.LIVE, LiveSocket(parts.board))),
        route(
            r"^ws/playground/(?P<slug>[a-z0-9-]+)$",
            parts.gate.guarded(tickets.PLAYGROUND, playground),
        ),
        route(r"", NoSocket()),
    ]
    return ProtocolTypeRouter(
        {
            "http": URLRouter(routes),
            "websocket": URLRouter(sockets),
            "lifespan": RunningPlane(parts),
        }
    )
