"""The cost of limits, journal and ledger: requests with all of them and with none, in turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import httpx
from asgiref.sync import sync_to_async
from django.utils import timezone

from gateway.database import redis_command, redis_socket
from gateway.local.supervisor import Child
from tenants.models import ApiKey, LimitSet, Price, Tenant
from tests.environment import VAR
from tests.labs.bench.latency import p50_over_http
from tests.labs.bench.machinery import servers
from tests.labs.bench.machinery.load import Tally
from tests.labs.bench.machinery.measure import Sample, Samples, Side
from tests.labs.bench.machinery.processes import PYTHON, Failed, cpu_of, postgres_cpu_s, running
from tests.labs.bench.machinery.report import Figure, Report, Row, take_turns
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.sides import lorikeet
from tests.tenants.making import make_base_of

CLIENTS = 64
ANSWER_TOKENS = 64
"""Tokens of a short answer. One-token answers are the worst case: nothing hides metering's cost."""
PACE = 40.0
"""Tokens per second of a stream at a real engine's pace."""
LONGEST, LEAST = 1.15, 0.85
"""Bounds on the ratios of one request's time and of requests per second: at most 15 % worse."""
BARE = [*PYTHON, "-m", "tests.labs.bench.sides.unmetered"]
WITH, WITHOUT = "with", "without"
STORES = ("PostgreSQL", "Redis")

NEVER = 10**11
"""A limit that is counted and never reached."""
TENANT_LIMITS = dict.fromkeys(
    (
        "requests_per_minute",
        "tokens_per_minute",
        "concurrent_streams",
        "tokens_per_day",
        "cost_per_month",
    ),
    NEVER,
)
KEY_LIMITS = dict.fromkeys(("requests_per_minute", "output_tokens_per_minute"), NEVER)
PRICE = {"prompt": 500, "cached_prompt": 100, "output": 2000}


@dataclass(frozen=True, slots=True)
class Round:
    """Results of one side in one round."""

    p50_ms: float
    whole: Sample


async def run(scale: Scale) -> Report:
    """Measure with the limits' counters in the gateway's process, then in Redis.

    Raises:
        Failed: no limits applied, or PostgreSQL does not hold exactly the usage of the answers.
    """
    async with _sides(0.0) as (key, sides):
        rows = await _whole("in process", 1, key, sides, scale)
        rows += await _whole("in process", ANSWER_TOKENS, key, sides, scale)
    rows += await _streams(scale)
    socket = redis_socket(VAR)
    async with (
        running("redis", redis_command(socket)) as redis,
        _sides(0.0, f"unix://{socket}", redis) as (key, sides),
    ):
        rows += await _whole("Redis", 1, key, sides, scale)
        rows += await _whole("Redis", ANSWER_TOKENS, key, sides, scale)
    return Report(
        f"Limits and metering, {CLIENTS} clients, synthetic engine",
        rows,
        "With: five limits of the tenant, two of them budgets, and two of its key; a price; the "
        "journal and the ledger. PostgreSQL held exactly what was answered, and its cost.",
    )


async def _whole(
    counters: str, tokens: int, key: str, sides: dict[str, Side], scale: Scale
) -> list[Row]:
    """Non-streaming answers of `tokens` tokens: one at a time, then many clients at once."""

    def request(i: int) -> bytes:
        return lorikeet.chat(servers.MODEL, f"{i}: hello", max_tokens=tokens, key=key)

    async def ask(side: Side) -> Round:
        count = scale.single_requests
        p50_ms = await p50_over_http(side.address, request, count)
        await side.settle(Tally(requests=count, tokens=count * tokens))
        requests = [request(i) for i in range(scale.requests)]
        return Round(p50_ms, await side.answer(requests, clients=CLIENTS))

    turns = {name: partial(ask, side) for name, side in sides.items()}
    await take_turns(1, turns)
    found = await take_turns(scale.rounds, turns)
    return _whole_rows(f"{counters}, max_tokens {tokens}", found[WITH], found[WITHOUT])


async def _streams(scale: Scale) -> list[Row]:
    """Streams at a real engine's pace: every step is journaled."""
    async with _sides(PACE) as (key, sides):
        requests = [
            lorikeet.chat(
                servers.MODEL, f"{i}: hello", max_tokens=ANSWER_TOKENS, stream=True, key=key
            )
            for i in range(scale.paced_streams)
        ]
        turns = {
            name: partial(side.answer, requests, clients=CLIENTS) for name, side in sides.items()
        }
        found = await take_turns(scale.rounds, turns)
    return _stream_rows(Samples(found[WITH]), Samples(found[WITHOUT]))


# --- with and without ----------------------------------------------------------------------------


@asynccontextmanager
async def _sides(
    pace: float, redis_url: str = "", redis: Child | None = None
) -> AsyncIterator[tuple[str, dict[str, Side]]]:
    """Both sides, and a key for them. The bare side's agent has no journal either."""
    key = await sync_to_async(limited_key)()
    parts = {"PostgreSQL": postgres_cpu_s, "Redis": cpu_of(redis) if redis else lambda: 0.0}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        metered = await enter(lorikeet.gateway(f"gateway-{WITH}", LORIKEET_REDIS_URL=redis_url))
        bare = await enter(lorikeet.gateway(f"gateway-{WITHOUT}", command=[*BARE, "gateway"]))
        options = [*servers.ENGINE_OPTIONS, "--tokens-per-second", str(pace)]
        ours = await enter(lorikeet.engine(metered, f"engine-{WITH}", *options))
        other = await enter(
            lorikeet.engine(bare, f"engine-{WITHOUT}", *options, command=[*BARE, "engine"])
        )
        for gateway in (metered, bare):
            await lorikeet.until_served(gateway, key, servers.MODEL)
        if not await _is_limited(metered, key) or await _is_limited(bare, key):
            raise Failed("limits are not counted with metering, or counted without")
        bill = Bill(key)
        await bill.settle(Tally(requests=2, tokens=2))  # requests to `metered` so far
        yield (
            key,
            {
                WITH: Side(metered.address, parts | _parts(metered, ours), bill.settle),
                WITHOUT: Side(bare.address, parts | _parts(bare, other)),
            },
        )


def _parts(gateway: lorikeet.Gateway, engine: Child) -> dict[str, Callable[[], float]]:
    return {"gateway": cpu_of(gateway.child), "agent": cpu_of(engine)}


def limited_key() -> str:
    """A new key of a tenant with limits, on a model with a price."""
    tenant, _ = Tenant.objects.get_or_create(slug="metered", defaults={"name": "Metered"})
    key, text = ApiKey.objects.issue(tenant, name="bench", scopes=["inference"])
    author = LimitSet.Author.OPERATOR
    LimitSet.objects.update_or_create(
        tenant=tenant, key=None, author=author, defaults=TENANT_LIMITS
    )
    LimitSet.objects.create(tenant=tenant, key=key, author=author, **KEY_LIMITS)
    base = make_base_of(servers.engine().info)
    Price.objects.get_or_create(base_model=base, defaults={"starts_at": timezone.now(), **PRICE})
    return text


async def _is_limited(gateway: lorikeet.Gateway, key: str) -> bool:
    """Whether an answer has headers about limits."""
    body = {"model": servers.MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client:
        answer = await client.post(
            lorikeet.CHAT,
            json=body | {"max_tokens": 1},
            headers={"Authorization": f"Bearer {key}"},
        )
    return "x-ratelimit-remaining-requests" in answer.raise_for_status().headers


class Bill:
    """Sums of the answers to a key so far, which the ledger must match."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._requests = self._tokens = 0

    async def settle(self, tally: Tally) -> None:
        """Add answers, and wait until the ledger has them at their price.

        Raises:
            Failed: it does not, or the tokens or the cost differ.
        """
        self._requests += tally.requests
        self._tokens += tally.tokens
        billed = await lorikeet.until_billed(self._key, self._requests)
        uncached = billed["prompt_tokens"] - billed["cached_tokens"]
        cost = uncached * PRICE["prompt"] + billed["cached_tokens"] * PRICE["cached_prompt"]
        cost += billed["completion_tokens"] * PRICE["output"]
        if (billed["completion_tokens"], billed["cost"]) != (self._tokens, cost):
            raise Failed(f"{self._tokens} tokens were answered, and billed: {billed}")


# --- figures -------------------------------------------------------------------------------------


def _whole_rows(what: str, ours: list[Round], bare: list[Round]) -> list[Row]:
    p50, p50_bare = (Figure.of([one.p50_ms for one in found]) for found in (ours, bare))
    load, load_bare = (Samples([one.whole for one in found]) for found in (ours, bare))
    rate, rate_bare = load.requests_per_s(), load_bare.requests_per_s()
    return [
        Row(f"{what}: p50 of one request, with", p50, "ms"),
        Row(f"{what}: the same, without", p50_bare, "ms"),
        Row(f"{what}: with over without", p50.over(p50_bare), "x", at_most=LONGEST),
        Row(f"{what}: requests/s, with", rate, "requests/s"),
        Row(f"{what}: the same, without", rate_bare, "requests/s"),
        Row(f"{what}: with over without", rate.over(rate_bare), "x", at_least=LEAST),
        *_cpu_rows(what, load.ms_per_request, load_bare.ms_per_request, "ms/request"),
    ]


def _stream_rows(ours: Samples, bare: Samples) -> list[Row]:
    what, unit = f"streams of {PACE:g} tokens/s", "s/1,000 tokens"
    return _cpu_rows(what, ours.s_per_1000_tokens, bare.s_per_1000_tokens, unit)


def _cpu_rows(
    what: str, ours: Callable[..., Figure], bare: Callable[..., Figure], unit: str
) -> list[Row]:
    """CPU of each process with and without metering, and the ratio of their totals."""
    rows = [
        Row(f"{what}: CPU of {part}, {name}", side(part), unit)
        for part in ("gateway", "agent")
        for name, side in ((WITH, ours), (WITHOUT, bare))
    ]
    rows += [Row(f"{what}: CPU of {part}, with", ours(part), unit) for part in STORES]
    cpu, cpu_bare = ours("gateway", "agent"), bare("gateway", "agent")
    return [*rows, Row(f"{what}: gateway and agent, with over without", cpu.over(cpu_bare), "x")]
