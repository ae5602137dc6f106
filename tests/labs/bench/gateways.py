"""Gateways of others beside Lorikeet's, in front of the same server that answers at once: ten
clients, as in the public comparisons of gateways.

Lorikeet is measured twice: with an engine of its own kind (synthetic), and with an upstream engine
in front of that server, which is one hop more than the others have. Only Lorikeet checks keys in a
database, limits and bills; LiteLLM knows one key, Portkey and vllm-router none.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from math import ceil

import psutil
from asgiref.sync import sync_to_async

from gateway.local.supervisor import Child
from tests.labs.bench.machinery import servers
from tests.labs.bench.machinery.client import Address
from tests.labs.bench.machinery.measure import Samples, Side
from tests.labs.bench.machinery.processes import cpu_s, family, url_of
from tests.labs.bench.machinery.report import Figure, Report, Row, take_turns
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.sides import lorikeet, peers

CLIENTS, TOKENS = 10, 16
OWN, UPSTREAM, MOCK = "Lorikeet", "Lorikeet, upstream engine", "the server alone"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Started:
    """A gateway with the seconds that it took to start, its processes, and requests for it."""

    address: Address
    start_s: float
    children: Sequence[Child]
    request: Callable[[int], bytes]

    @property
    def side(self) -> Side:
        return Side(self.address, {"front": partial(cpu_s, _all(self.children))})

    def resident_mib(self) -> float:
        """The memory of its processes, each with what it shares with others."""
        return sum(one.memory_info().rss for one in _all(self.children)) / MIB

    def requests(self, count: int) -> list[bytes]:
        return list(map(self.request, range(count)))


async def run(scale: Scale) -> Report:
    """Measure whole answers of each gateway, in turns.

    Raises:
        Failed: PostgreSQL does not hold exactly the usage of Lorikeet's answers.
    """
    async with AsyncExitStack() as stack:
        events, tokens = await sync_to_async(lorikeet.recorded)()
        sides = {name: one async for name, one in _started(stack, scale.key)}
        turns = {
            name: partial(one.side.answer, one.requests(scale.requests), clients=CLIENTS)
            for name, one in sides.items()
        }
        took = await take_turns(scale.rounds, turns)
        found = {name: Samples(rounds) for name, rounds in took.items()}
        answered = [one.tally for name in (OWN, UPSTREAM) for one in found[name].rounds]
        first = 2  # a one-token request to each engine, to see that it is served
        events += first + sum(tally.requests for tally in answered)
        tokens += first + sum(tally.tokens for tally in answered)
        await lorikeet.until_recorded(events, tokens)
        rows = [
            *_rows(found),
            *_each(sides, "memory after it", "MiB", Started.resident_mib),
            *_each(sides, "start", "s", lambda one: one.start_s),
        ]
    return Report(
        f"Gateways in front of a server that answers at once, {CLIENTS} clients, {TOKENS} tokens",
        rows,
        f"{events} usage events with {tokens} output tokens are in PostgreSQL, as answered.",
    )


async def _started(stack: AsyncExitStack, key: str) -> AsyncIterator[tuple[str, Started]]:
    """Start the server and every gateway, one after the other."""
    mock = await stack.enter_async_context(peers.server("mock"))
    yield MOCK, Started(mock.address, 0.0, [mock.child], partial(_chat, servers.MODEL, ""))
    async for found in _lorikeet(stack, mock, key):
        yield found
    others = {"vllm-router": (peers.router, partial(_chat, servers.MODEL, ""))}
    if peers.LITELLM.exists():
        litellm = partial(peers.litellm, models=[servers.MODEL])
        others["LiteLLM"] = (litellm, partial(_chat, servers.MODEL, peers.LITELLM_KEY))
    if peers.PORTKEY.exists():
        others["Portkey"] = (peers.portkey, partial(_to_portkey, mock.address))
    for name, (started, request) in others.items():
        began = time.monotonic()
        peer = await stack.enter_async_context(started(mock))
        yield name, Started(peer.address, time.monotonic() - began, [peer.child], request)


async def _lorikeet(
    stack: AsyncExitStack, mock: peers.Peer, key: str
) -> AsyncIterator[tuple[str, Started]]:
    """One gateway, and two engines with a model each."""
    began = time.monotonic()
    gateway = await stack.enter_async_context(lorikeet.gateway())
    started_s = time.monotonic() - began
    upstream = ["--engine", "upstream", "--upstream-url", f"{url_of(mock.address)}/v1"]
    upstream += ["--upstream-model", servers.MODEL, "--upstream-dialect", "vLLM"]
    engines = {
        OWN: (servers.MODEL, [*servers.ENGINE_OPTIONS, "--tokens-per-second", "0"]),
        UPSTREAM: ("upstream", [*upstream, "--model", "upstream", "--max-model-len", "4096"]),
    }
    for number, (name, (model, options)) in enumerate(engines.items(), 1):
        began = time.monotonic()
        engine = await stack.enter_async_context(
            lorikeet.engine(gateway, f"engine-{model}", *options)
        )
        await lorikeet.until_joined(gateway, number)
        await lorikeet.until_served(gateway, key, model)
        took = started_s + time.monotonic() - began
        request = partial(_chat, model, key)
        yield name, Started(gateway.address, took, [gateway.child, engine], request)


def _chat(model: str, key: str, number: int) -> bytes:
    return lorikeet.chat(model, f"{number}: hello", max_tokens=TOKENS, key=key)


def _to_portkey(server: Address, number: int) -> bytes:
    """It is told in each request where to."""
    named = f"x-portkey-provider: openai\r\nx-portkey-custom-host: {url_of(server)}/v1\r\n"
    head, _, body = _chat(servers.MODEL, "none", number).partition(b"\r\n\r\n")
    return b"%b\r\n%b\r\n%b" % (head, named.encode(), body)


def _all(children: Sequence[Child]) -> list[psutil.Process]:
    return [process for child in children for process in family(child)]


def _rows(found: dict[str, Samples]) -> list[Row]:
    rows = []
    for name, samples in found.items():
        rows += [
            Row(f"answers: {name}", samples.requests_per_s(), "requests/s"),
            Row(f"p50: {name}", _percentile(samples, 50), "ms"),
            Row(f"p99: {name}", _percentile(samples, 99), "ms"),
            Row(f"CPU: {name}", samples.ms_per_request("front"), "ms/request"),
        ]
    return rows


def _percentile(samples: Samples, percent: int) -> Figure:
    def of(latencies_s: list[float]) -> float:
        return 1e3 * sorted(latencies_s)[ceil(len(latencies_s) * percent / 100) - 1]

    return samples.of(lambda one: of(one.tally.latencies_s))


def _each(
    sides: dict[str, Started], what: str, unit: str, value: Callable[[Started], float]
) -> list[Row]:
    return [Row(f"{what}: {name}", Figure.of([value(one)]), unit) for name, one in sides.items()]
