"""Lorikeet's own processes, started one by one as in production."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db.models import Count, Sum

from gateway.local import seed
from gateway.local.supervisor import Child
from tenants.models import ApiKey, Tenant, UsageEvent, UsageRollup
from tenants.models.usage.sums import FIGURES
from tests.environment import VAR
from tests.labs.bench.machinery.client import Address, Connection, Refused, post
from tests.labs.bench.machinery.processes import (
    HOST,
    MANAGE,
    POLL_S,
    Failed,
    free_port,
    running,
    url_of,
)

CHAT = "/v1/chat/completions"
GATEWAY, ENGINE = [*MANAGE, "gateway"], [*MANAGE, "engine"]
JOINED_S = 60.0
NOTED_S = 10.0
"""Longest wait until the base model of an engine that connected is in the catalogue."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway process, or a console."""

    address: Address
    child: Child

    @property
    def url(self) -> str:
        return url_of(self.address)


def issue_key() -> str:
    """A new key of the benchmarks' tenant."""
    tenant, _ = Tenant.objects.get_or_create(slug="bench", defaults={"name": "Benchmark"})
    return ApiKey.objects.issue(tenant, name="bench", scopes=["inference"])[1]


def recorded() -> tuple[int, int]:
    """The number of usage events in PostgreSQL, and their output tokens."""
    sums = UsageEvent.objects.aggregate(events=Count("id"), tokens=Sum("completion_tokens"))
    return sums["events"], sums["tokens"] or 0


@asynccontextmanager
async def gateway(
    name: str = "gateway", *, command: Sequence[str] = GATEWAY, **given: str
) -> AsyncIterator[Gateway]:
    """One gateway process with the settings `given`; it counts limits in its own memory unless
    there is a REDIS_URL."""
    address = (HOST, free_port())
    command = [*command, "--port", str(address[1])]
    environment = {"LORIKEET_REDIS_URL": ""} | given
    async with running(name, command, f"{url_of(address)}/healthz", environment) as child:
        yield Gateway(address, child)


@asynccontextmanager
async def console() -> AsyncIterator[Gateway]:
    """One console process, which queries all gateways that are alive."""
    address = (HOST, free_port())
    command = [*MANAGE, "console", "--port", str(address[1])]
    async with running("console", command, f"{url_of(address)}/healthz") as child:
        yield Gateway(address, child)


@asynccontextmanager
async def worker() -> AsyncIterator[Child]:
    """One worker process."""
    async with running("worker", [*MANAGE, "worker"]) as child:
        yield child


@asynccontextmanager
async def engine(
    gateway: Gateway, name: str, *options: str, command: Sequence[str] = ENGINE
) -> AsyncIterator[Child]:
    """One engine agent, connected to the gateway. A second one started before the first ended
    would share its load."""
    places = {
        "--gateway": gateway.url,
        "--cache-dir": str(VAR / "cache" / name),
        "--journal-dir": str(VAR / "journal" / name),
    }
    given = [part for place in places.items() for part in place]
    credentials = await sync_to_async(seed.engines)({}, [name])
    environment = {"LORIKEET_ENGINE_CREDENTIAL": credentials[name]}
    command = [*command, *given, *options]
    async with running(name, command, f"{gateway.url}/fleetz", environment) as child:
        yield child


async def fleet(gateway: Gateway) -> list[dict[str, Any]]:
    """The gateway's engines, as it reports them to the console."""
    headers = {"Authorization": f"Bearer {settings.INTERNAL_TOKEN}"}
    async with httpx.AsyncClient(headers=headers, trust_env=False) as client:
        report = (await client.get(f"{gateway.url}/internal/fleet")).raise_for_status().json()
    engines: list[dict[str, Any]] = report["engines"]
    return engines


async def until_joined(gateway: Gateway, engines: int) -> None:
    """Wait until the gateway has `engines` engines; these dial every gateway that is listed.

    Raises:
        Failed: it has another number after JOINED_S.
    """
    for _ in range(int(JOINED_S / POLL_S)):
        if (found := len(await fleet(gateway))) == engines:
            return
        await asyncio.sleep(POLL_S)
    raise Failed(f"a gateway has {found} engines instead of {engines}")


async def until_served(gateway: Gateway, key: str, model: str) -> None:
    """Wait until the model answers a request of the key.

    Raises:
        Failed: it does not.
    """
    request = chat(model, "Hello", max_tokens=1, key=key)
    connection = await Connection.open(gateway.address)
    began = time.monotonic()
    try:
        while True:
            try:
                await connection.send(request)
                return
            except Refused as error:
                if time.monotonic() - began > NOTED_S:
                    raise Failed(f"{model} is not served: {error}") from None
                await asyncio.sleep(0.2)
    finally:
        connection.close()


async def until_billed(key: str, requests: int) -> dict[str, int]:
    """Wait until the ledger has `requests` requests of the key; returns the sums over them.

    Raises:
        Failed: it still has another number after ten seconds.
    """
    found: dict[str, int] = {}
    for _ in range(200):
        found = await sync_to_async(billed)(key)
        if found["requests"] == requests:
            return found
        await asyncio.sleep(0.05)
    raise Failed(f"{requests} requests were answered, but billed: {found}")


def billed(key: str) -> dict[str, int]:
    """The ledger's sums for the key."""
    rollups = UsageRollup.objects.filter(key=ApiKey.objects.find(key))
    return rollups.aggregate(**{name: Sum(name, default=0) for name in FIGURES})


async def until_recorded(events: int, tokens: int) -> None:
    """Wait until PostgreSQL holds exactly this usage.

    Raises:
        Failed: it does not within ten seconds.
    """
    found = (-1, -1)
    for _ in range(50):
        found = await sync_to_async(recorded)()
        if found == (events, tokens):
            return
        await asyncio.sleep(0.2)
    raise Failed(f"{events} requests of {tokens} tokens were answered, but recorded: {found}")


def chat(model: str, text: str, *, max_tokens: int, stream: bool = False, key: str = "") -> bytes:
    """A chat request whose answer has exactly `max_tokens` tokens."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return post(CHAT, body, key)
