"""Lorikeet without limits, journal and ledger, to measure their cost; the rest is the product's.

`python -m tests.labs.bench.sides.unmetered gateway --port N`, or `engine` with the options of
`manage.py engine`. It serves the base model alone, and no other gateway knows of it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from inference.agent.__main__ import parser, profile_of, serve, start_engine
from inference.agent.journal.journal import NOTHING, Journal
from inference.interfaces.directory import Grant, ResolvedTarget, TokenPrice
from inference.interfaces.ledger import Source, Written
from inference.interfaces.limiter import Reservation, ReservationRequest
from inference.link.accounts import Account, LedgerEntry, Totals, Usage
from inference.link.engine_info import EngineStats
from inference.link.session import AttemptKey
from inference.link.wire import MAX_FRAME_BYTES
from inference.operations.openai import UsageCounts
from inference.process import environ, gc_tuning, logs


class NoLimits:
    """A Limiter that lets everything through."""

    async def reserve(
        self, id: str, grant: Grant, target: ResolvedTarget, ask: ReservationRequest
    ) -> Reservation:
        return Reservation(id)

    async def extend(self, reservation: Reservation, output_tokens: int) -> None:
        pass

    def settle(self, id: str, usage: Usage | None, price: TokenPrice | None = None) -> None:
        pass

    def release(self, id: str) -> None:
        pass

    async def look(self, grant: Grant) -> Reservation:
        return Reservation("")


class NoLedger:
    """A Recorder that forgets."""

    def record(
        self, engine_id: str, journal: str, entries: Sequence[LedgerEntry], written: Written
    ) -> None:
        written([(entry.id, entry.attempt) for entry in entries])

    def quarantine(
        self, source: Source, suspects: Sequence[tuple[LedgerEntry, str]], written: Written
    ) -> None:
        pass

    def totals(self, engine_id: str, stats: EngineStats) -> None:
        pass


class NoJournal(Journal):
    """A journal without requests, so that there is nothing to bill."""

    id = ""
    journaled = unbilled = Totals()
    backlog = open_requests = 0

    def __init__(self) -> None:
        pass

    def unacknowledged(self) -> list[LedgerEntry]:
        return []

    def opened(
        self, attempt: AttemptKey, account: Account, model: str, inherited: UsageCounts = NOTHING
    ) -> None:
        pass

    def progressed(self, figures: Iterable[tuple[AttemptKey, UsageCounts]]) -> None:
        pass

    def closed(self, attempt: AttemptKey, usage: Usage, finish_reason: str) -> None:
        return None

    def acknowledged(self, attempts: Iterable[AttemptKey]) -> None:
        pass

    def write(self) -> None:
        pass

    def close(self) -> None:
        pass


def gateway(arguments: list[str]) -> None:
    """Run one gateway process with the settings of `manage.py gateway`."""
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    port: int = options.parse_args(arguments).port
    sys.path.append(str(Path(__file__).resolve().parents[4] / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    import django
    from django.conf import settings

    django.setup()
    logs.configure(f"gateway:{port}", settings.LOG_LEVEL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_gateway(port))


async def _serve_gateway(port: int) -> None:
    from channels.routing import ProtocolTypeRouter, URLRouter
    from django.conf import settings
    from django.urls import re_path

    from inference.gateway.dispatcher import Dispatcher
    from inference.gateway.fleet.dispatches import Dispatches
    from inference.gateway.health import Health
    from inference.gateway.http import OpenAIServer
    from inference.gateway.hub import Hub
    from inference.gateway.sockets import EngineSocket
    from tenants.answers import PostgresAnswers
    from tenants.content.conversations import PostgresConversations
    from tenants.content.responses import PostgresResponses
    from tenants.content.store import PostgresContents
    from tenants.directory.auth import PostgresDirectory
    from tenants.directory.engines import KnownEngines

    limiter: Any = NoLimits()
    directory, answers = PostgresDirectory(), PostgresAnswers()
    engines = KnownEngines()
    directory.on_engines(engines.learn)
    dispatches = Dispatches(settings.DISPATCH_KEY)
    url = f"http://127.0.0.1:{port}"
    hub = Hub(url, NoLedger(), limiter, engines=engines, dispatches=dispatches)

    async def engine_connected() -> bool:
        return bool(hub.snapshot())

    inference = OpenAIServer(
        Dispatcher(hub, directory, limiter, timeout_s=settings.REQUEST_TIMEOUT_S),
        directory,
        limiter,
        answers=answers,
        # Never called: the tenants store nothing.
        stored=PostgresResponses(PostgresContents(), most=1),
        conversations=PostgresConversations(PostgresContents()),
        secret=settings.INTERNAL_TOKEN,
        max_body_bytes=settings.MAX_REQUEST_BYTES,
    )
    health = Health({}, {"engine": engine_connected})
    http = [re_path(r"^v1/", inference), re_path(r"^(healthz|fleetz)$", health)]  # type: ignore[arg-type]
    websocket = [re_path(r"^ws/engine$", EngineSocket(hub, engines))]  # type: ignore[arg-type]
    config = uvicorn.Config(
        ProtocolTypeRouter({"http": URLRouter(http), "websocket": URLRouter(websocket)}),
        port=port,
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=MAX_FRAME_BYTES,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
    )
    async with directory, answers:
        gc_tuning.settle()
        await uvicorn.Server(config).serve()


def engine(arguments: list[str]) -> None:
    """Run one engine agent like `inference.agent.__main__`."""
    options = parser().parse_args(arguments)
    options.credential = environ.secret("LORIKEET_ENGINE_CREDENTIAL")
    logs.configure(options.id, options.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options, profile_of(options), NoJournal(), start_engine))


if __name__ == "__main__":
    {"gateway": gateway, "engine": engine}[sys.argv[1]](sys.argv[2:])
