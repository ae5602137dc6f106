"""The latency that gateway, engine link and agent add to one request on an idle machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from statistics import median

from inference.agent.engines.synthetic.engine import SyntheticEngine
from tests.labs.bench.machinery import servers
from tests.labs.bench.machinery.client import Address, Connection
from tests.labs.bench.machinery.report import Figure, Report, Row, take_turns
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.sides import lorikeet, peers

TARGET_MS = 2.0


async def run(scale: Scale) -> Report:
    """Time one-token, non-streaming requests, one after another."""
    async with (
        lorikeet.gateway() as gateway,
        lorikeet.engine(gateway, "engine", *servers.ENGINE_OPTIONS),
        peers.server("echo") as echo,
    ):
        await lorikeet.until_served(gateway, scale.key, servers.MODEL)
        engine, count = servers.engine(), scale.single_requests

        async def direct() -> float:
            return await _direct(engine, count)

        async def bare_http() -> float:
            return await p50_over_http(echo.address, lambda i: _request(i, ""), count)

        async def through_gateway() -> float:
            return await p50_over_http(gateway.address, lambda i: _request(i, scale.key), count)

        sides = {"direct": direct, "http": bare_http, "gateway": through_gateway}
        found = await take_turns(scale.rounds, sides)
    return _report({name: Figure.of(values) for name, values in found.items()})


def _report(ms: dict[str, Figure]) -> Report:
    added = ms["gateway"].minus(ms["direct"])
    return Report(
        "Added latency: p50 of one-token requests at concurrency 1",
        [
            Row("direct call of the synthetic engine", ms["direct"], "ms"),
            Row("bare HTTP echo, same server and client", ms["http"], "ms"),
            Row("through gateway, engine link and agent", ms["gateway"], "ms"),
            Row("added by all of it", added, "ms", at_most=TARGET_MS),
            Row("of which not HTTP itself", ms["gateway"].minus(ms["http"]), "ms"),
        ],
    )


def _request(i: int, key: str) -> bytes:
    return lorikeet.chat(servers.MODEL, f"{i}: hello", max_tokens=1, key=key)


async def _direct(engine: SyntheticEngine, count: int) -> float:
    """The median time of a direct call, in milliseconds."""
    took = []
    for i in range(count):
        message = {"role": "user", "content": f"{i}: hello"}
        body = {"model": servers.MODEL, "messages": [message], "max_tokens": 1, "ignore_eos": True}
        began = time.perf_counter()
        async with aclosing(engine.generate(servers.work_of(body))) as outputs:
            async for _ in outputs:
                pass
        took.append(time.perf_counter() - began)
    return median(took) * 1000


async def p50_over_http(address: Address, request: Callable[[int], bytes], count: int) -> float:
    """The median time of a request over HTTP, in milliseconds."""
    connection, took = await Connection.open(address), []
    try:
        for i in range(count):
            message = request(i)
            began = time.perf_counter()
            await connection.send(message)
            took.append(time.perf_counter() - began)
    finally:
        connection.close()
    return median(took) * 1000
