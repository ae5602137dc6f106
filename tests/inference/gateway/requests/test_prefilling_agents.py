"""A prefill agent and a decode agent share requests, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.gateway.requests.held import Holding
from inference.gateway.routing.prefill import HANDED_OVER, PrefillPolicy
from inference.link.engine_info import DECODE, PREFILL
from tests.inference.rig import STALLED, Gateway, Rig, agent_on, chat, gateway, until
from tests.inference.samples import MODEL

CHATS = "/v1/chat/completions"
LONG = "all that was said before, " * 20


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Rig, Rig]]:
    """A prefill and a decode engine of one pool, on one gateway."""
    async with AsyncExitStack() as stack:
        prefill = PrefillPolicy(tokens=50, wait_s=60.0)
        one = await stack.enter_async_context(gateway(holding=Holding(60.0), prefill=prefill))
        made = []
        for role in (PREFILL, DECODE):
            (tmp_path / role).mkdir()
            engine = SyntheticEngine(msgspec.structs.replace(MODEL, role=role))
            stack.push_async_callback(engine.close)
            agent = agent_on(engine, tmp_path / role, [one], id=role)
            made.append(await stack.enter_async_context(agent))
        await until(lambda: len(one.hub.snapshot()) == 2)
        yield made[0], made[1]


def behave(rig: Rig, behaviour: Behaviour) -> None:
    rig.engine.behaviour = behaviour  # type: ignore[attr-defined]


def attempts(one: Gateway) -> list[int]:
    """The attempts that the ledger bills."""
    return [entry.attempt for entry in one.ledger.entries.values()]


async def asked(client: httpx.AsyncClient, model: str = MODEL.name, **fields: Any) -> Any:
    answer = await client.post(CHATS, json=chat(model, LONG, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_answers_and_bills_are_those_of_one_engine(pair: tuple[Rig, Rig]) -> None:
    """Each asks twice: the second time the decode engine has the prompt itself."""
    prefill, decode = pair
    one = prefill.gateway
    prefill.adapter("acme", "support")
    async with one.client("acme") as acme, one.client("globex") as globex:
        for client, model in ((acme, MODEL.name), (acme, "support"), (globex, MODEL.name)):
            first, again = await asked(client, model), await asked(client, model)
            assert first["choices"] == again["choices"]
            first, again = first["usage"], again["usage"]
            assert first["prompt_tokens_details"]["cached_tokens"] == 0, "of other tenants' prompts"
            assert again["prompt_tokens_details"]["cached_tokens"] > 0
            assert again["prompt_tokens"] == first["prompt_tokens"]
        await until(lambda: sorted(attempts(one)) == [1, 1, 1, 2, 2, 2])
        usages = [entry.usage for entry in await one.ledger.settled(6)]
    assert one.hub.prefill.prompts == {(MODEL.name, HANDED_OVER): 3}
    computed, given = prefill.engine.stats(), decode.engine.stats()
    assert computed.completion_tokens == 0 and computed.prompt_tokens == given.prompt_tokens > 0
    assert sum(one.prompt_tokens for one in usages) == 2 * computed.prompt_tokens
    assert sum(one.cached_tokens for one in usages) == given.cached_tokens
    assert sum(one.completion_tokens for one in usages) == given.completion_tokens
    for rig in pair:
        assert rig.agent.reports.stats().unjournaled_tokens == 0
    assert not one.limits.open


async def test_a_prefill_engine_that_dies_is_not_noticed(pair: tuple[Rig, Rig]) -> None:
    prefill, decode = pair
    one = prefill.gateway
    async with one.client("acme") as acme, one.client("globex") as globex:
        plain = await asked(acme)
        behave(prefill, STALLED)
        answer = asyncio.create_task(asked(globex))
        await until(lambda: prefill.engine.stats().running)
        prefill.running.cancel()
        assert (await answer)["choices"] == plain["choices"]
        await until(lambda: attempts(one) == [2, 2])
        usages = [entry.usage for entry in await one.ledger.settled(2)]
        assert usages[0].prompt_tokens == usages[1].prompt_tokens == plain["usage"]["prompt_tokens"]
        assert decode.engine.stats().prompt_tokens == plain["usage"]["prompt_tokens"]


async def test_a_prompt_that_takes_too_long_is_computed_by_the_decode_engine(
    pair: tuple[Rig, Rig],
) -> None:
    prefill, _ = pair
    one = prefill.gateway
    one.hub.prefill.wait_s = 0.01
    behave(prefill, STALLED)
    async with one.client() as client:
        await asked(client)
        await until(lambda: attempts(one) == [2] and not prefill.engine.stats().running)
        (entry,) = await one.ledger.settled(1)
    assert (entry.attempt, entry.usage.cached_tokens) == (2, 0)
    assert one.hub.prefill.prompts == {(MODEL.name, "recalled"): 1}


@pytest.mark.parametrize("role", [PREFILL, DECODE])
async def test_a_client_that_leaves_frees_the_engine_that_has_its_request(
    pair: tuple[Rig, Rig], role: str
) -> None:
    prefill, decode = pair
    has_it = prefill if role == PREFILL else decode
    one = prefill.gateway
    behave(has_it, STALLED)
    async with one.client() as client:
        leaving = asyncio.create_task(asked(client, stream=True))
        await until(lambda: has_it.engine.stats().running)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    await until(lambda: not has_it.engine.stats().running and not one.hub.in_flight)
    await until(lambda: attempts(one) == [1 if role == PREFILL else 2])
    (entry,) = await one.ledger.settled(1)
    assert entry.finish_reason == "cancelled" and entry.usage.completion_tokens == 0
    assert bool(entry.usage.prompt_tokens) == (role == DECODE), "if it was computed, it is billed"
