"""Agents report what is warm, and gateways send requests there; over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.gateway.routing.engine_state import EngineState
from inference.link import wire
from inference.link.prefixes import Prefix, numbers_of
from inference.link.wire import Stats
from inference.operations.chat import CHAT
from tests.inference.played import Bench, benched, played_gateway
from tests.inference.rig import Gateway, Rig, agent_on, chat, connected, gateway, rig, until
from tests.inference.samples import MODEL

SYSTEM = {"role": "system", "content": "You are a patient teacher of many things. " * 40}
ROOMY = msgspec.structs.replace(MODEL, max_model_len=8192)


def asked(*turns: str) -> dict[str, Any]:
    """A conversation of these turns; the first one is the user's."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]
    return chat(max_tokens=4) | {"messages": [SYSTEM, *messages]}


async def cached(one: Gateway, body: dict[str, Any], key: str = "acme") -> int:
    """How many prompt tokens the engine's cache held, according to the answer."""
    async with one.client(key) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def state(one: Gateway, id: str = "engine-1") -> EngineState:
    return one.hub._links[id].engine


def told(one: Gateway, id: str = "engine-1") -> set[int]:
    """The hashes that the gateway was told, without those that it guesses."""
    warmth = state(one, id).warmth
    return warmth.known - warmth._guessed.keys()


async def test_a_gateway_is_told_what_became_warm_and_cold(tmp_path: Path) -> None:
    small = msgspec.structs.replace(ROOMY, kv_tokens=1024)
    async with rig(tmp_path, engine=SyntheticEngine(small)) as one:
        await cached(one.gateway, asked("Hello"))
        await until(lambda: told(one.gateway))
        first = told(one.gateway)
        for text in ("x", "y"):  # each fills most of the cache
            await cached(one.gateway, asked(text * 1600), "globex")
        await until(lambda: not first & told(one.gateway))
        assert told(one.gateway)


async def test_a_gateway_that_comes_later_hears_all_in_the_hello(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(gateway()) for _ in range(2)]
        one: Rig = await stack.enter_async_context(
            agent_on(SyntheticEngine(ROOMY), tmp_path, [first])
        )
        await cached(first, asked("Hello"))
        await until(lambda: told(first))
        one.agent._links.follow([second.url])
        await connected(second)
        assert told(second) == told(first)


async def test_a_conversation_stays_on_its_engine(tmp_path: Path) -> None:
    """Whichever of the two engines it begins on, although the other one is as idle."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(gateway())
        for id in ("engine-1", "engine-2"):
            (tmp_path / id).mkdir()
            engine = SyntheticEngine(ROOMY)
            await stack.enter_async_context(agent_on(engine, tmp_path / id, [one], id=id))
        await connected(one, engines=2)
        for tenant in ("acme", "globex"):
            turns = ["Hello"]
            for at in range(6):
                found = await cached(one, asked(*turns), tenant)
                assert (found > 0) == (at > 0)
                turns += ["An answer", "More"]


async def test_nothing_but_hashes_leaves_the_agent(tmp_path: Path) -> None:
    body = msgspec.json.encode(asked("secret " * 100))
    prefix = CHAT.parse(body).take_prefix("salt", "")
    assert prefix is not None
    welcome = wire.encode(wire.Welcome(wire.PROTOCOL_VERSION, "http://gateway"))
    async with played_gateway(tmp_path, welcome, wire.decode, ROOMY) as one:
        submit = wire.Submit("r1", "chat", body, "base", "acme", "salt", prefix=prefix)
        await one.say(submit)
        await one.hear(wire.Done, id="r1")
        await until(lambda: any(isinstance(frame, Stats) and frame.warm for frame in one.heard))
        for frame in one.heard:
            if isinstance(frame, Stats):
                said = wire.encode(frame)
                assert not any(word in said for word in (b"secret", b"patient", b"salt"))
                assert set(numbers_of(frame.warm)) <= set(prefix.numbers())


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with benched() as bench:
        yield bench


async def test_an_engine_that_does_not_tell_is_followed_by_guesses(bench: Bench) -> None:
    await bench.join("engine-1")
    prefix = Prefix.of([1, 2], [10, 20])
    bench.submit("r1", prefix=prefix)
    engine = bench.hub._links["engine-1"].engine
    assert not engine.warmth.is_reported
    assert engine.warmth.longest(prefix.numbers()) == 2
