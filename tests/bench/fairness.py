"""What a flood by one tenant costs another, and what too many adapters cost everybody: real vLLM."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from gateway import demo
from tests.bench import lorikeet
from tests.bench.client import Address, Connection, Refused, Reply
from tests.bench.report import Figure, Report, Row
from tests.bench.scale import Scale
from tests.bench.vllm import tenants_with_adapters

BASE = "base"
FLOOD = 100
"""Requests that the flooding tenant has under way at any time."""
FLOOD_TOKENS = 300
QUESTION = "Please answer briefly: what is the capital of Peru? "
PROMPT = QUESTION * 10
ANSWER_TOKENS = 8
ALLOWED = 1.5
"""The share of its undisturbed p99 TTFT that a tenant may see, besides one engine step."""
SLOTS = 4
PAUSE_S = 0.5
"""Between two tries of a flooding client that was refused."""


async def run(scale: Scale) -> Report:
    """One tenant asks one question at a time: alone, and while another floods the engine."""
    options = ["--model", str(demo.BASE), "--served-name", BASE, "--max-loras", str(SLOTS)]
    async with (
        lorikeet.gateway() as gateway,
        lorikeet.engine(gateway, "engine-fair", *options),
    ):
        await lorikeet.until_served(gateway, scale.key, BASE)
        (quiet, _), (noisy, _), *_ = [
            (key, adapter) for adapter, key in await tenants_with_adapters(gateway, BASE)
        ]
        alone, flooded, steps = [], [], []
        for _ in range(scale.fairness_rounds):
            alone.append(await _ask(gateway.address, quiet, scale.questions))
            async with _flood(gateway.address, noisy) as replies:
                flooded.append(await _ask(gateway.address, quiet, scale.questions))
            steps.append(sorted(reply.step_s for reply in replies)[len(replies) // 2])
    return _report(alone, flooded, steps)


async def _ask(address: Address, key: str, count: int) -> list[float]:
    """The TTFT of so many questions, one after another, in seconds."""
    connection, took = await Connection.open(address), []
    try:
        for i in range(count):
            text = f"{i}: {PROMPT}"
            request = lorikeet.chat(BASE, text, max_tokens=ANSWER_TOKENS, stream=True, key=key)
            took.append((await connection.send(request)).first_s)
    finally:
        connection.close()
    return took


@asynccontextmanager
async def _flood(address: Address, key: str) -> AsyncIterator[list[Reply]]:
    """FLOOD clients that always have a long request under way; what they were answered."""
    replies: list[Reply] = []
    numbers = itertools.count()
    clients = [
        asyncio.create_task(_long_requests(address, key, numbers, replies)) for _ in range(FLOOD)
    ]
    try:
        while len(replies) < FLOOD // 2 and not any(client.done() for client in clients):
            await asyncio.sleep(PAUSE_S)  # until it is in full swing
        replies.clear()
        yield replies
        while not replies:
            await asyncio.sleep(PAUSE_S)
    finally:
        for client in clients:
            client.cancel()
        done, _ = await asyncio.wait(clients)
    for client in done:
        if not client.cancelled():
            client.result()


async def _long_requests(
    address: Address, key: str, numbers: Iterable[int], replies: list[Reply]
) -> None:
    connection = await Connection.open(address)
    try:
        for i in numbers:
            text = f"flood {i}: {QUESTION}"
            request = lorikeet.chat(BASE, text, max_tokens=FLOOD_TOKENS, stream=True, key=key)
            with suppress(Refused):
                replies.append(await connection.send(request))
                continue
            await asyncio.sleep(PAUSE_S)
    finally:
        connection.close()


def _p99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]


def _report(alone: list[list[float]], flooded: list[list[float]], steps: list[float]) -> Report:
    def ms(values: Iterable[float]) -> Figure:
        return Figure.of([1000 * value for value in values])

    p99_alone, p99_flooded = [_p99(one) for one in alone], [_p99(one) for one in flooded]
    shares = [
        hit / (ALLOWED * quiet + step)
        for hit, quiet, step in zip(p99_flooded, p99_alone, steps, strict=True)
    ]
    return Report(
        f"One question at a time beside {FLOOD} long requests of another tenant, on vLLM",
        [
            Row("p50 TTFT alone", ms(sorted(one)[len(one) // 2] for one in alone), "ms"),
            Row(
                "p50 TTFT beside the flood", ms(sorted(one)[len(one) // 2] for one in flooded), "ms"
            ),
            Row("p99 TTFT alone", ms(p99_alone), "ms"),
            Row("p99 TTFT beside the flood", ms(p99_flooded), "ms"),
            Row("an engine step of the flood", ms(steps), "ms"),
            Row(
                f"p99 beside the flood over {ALLOWED:g} alone and a step", Figure.of(shares), "x", 1
            ),
        ],
    )
