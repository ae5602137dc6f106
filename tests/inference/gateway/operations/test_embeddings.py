"""Embeddings over real sockets, on synthetic engines: the SDK, the bill, moves, other kinds of
models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.gateway.requests.held import Holding
from inference.gateway.requests.journey import MoveReason, MoveResult
from tests.inference.rig import Gateway, Rig, agent_on, chat, gateway, rig, until
from tests.inference.samples import MODEL

TEXTS = ["the red fox", "the red bird", "a tree"]
TOKENS = 3 + 3 + 2
"""Of the three texts; a token has four characters."""
PATH = "/v1/embeddings"


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def sdk(stack: Rig, key: str = "acme") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{stack.gateway.url}/v1", api_key=key)


async def test_the_sdk_embeds_as_it_likes_best_and_pays_for_prompts(stack: Rig) -> None:
    async with sdk(stack) as client:
        packed = await client.embeddings.create(model=MODEL.name, input=TEXTS)
        plain = await client.embeddings.create(
            model=MODEL.name, input=TEXTS, encoding_format="float", user="somebody"
        )
        short = await client.embeddings.create(model=MODEL.name, input=TEXTS[0], dimensions=8)
        tokens = await client.embeddings.create(model=MODEL.name, input=[[1, 2], [3]])
    async with stack.gateway.client() as raw:  # these answers are checked against the SDK's types
        body = {"model": MODEL.name, "input": TEXTS, "encoding_format": "base64"}
        (told, *_) = (await raw.post(PATH, json=body)).json()["data"]
    assert isinstance(told["embedding"], str)
    assert packed.data == plain.data and [one.index for one in packed.data] == [0, 1, 2]
    assert len(short.data[0].embedding) == 8 and len(tokens.data) == 2
    assert packed.usage.prompt_tokens == packed.usage.total_tokens == TOKENS
    entries = await stack.gateway.ledger.settled(5)
    assert {entry.usage.completion_tokens for entry in entries} == {0}
    assert sorted(entry.usage.prompt_tokens for entry in entries) == [3, 3, *[TOKENS] * 3]


async def test_an_adapter_has_vectors_of_its_own_and_one_tenant(stack: Rig) -> None:
    stack.adapter("acme", "support")
    async with sdk(stack) as mine, sdk(stack, "globex") as other:
        base = await mine.embeddings.create(model=MODEL.name, input="x")
        adapted = await mine.embeddings.create(model="support", input="x")
        with pytest.raises(NotFoundError):
            await other.embeddings.create(model="support", input="x")
    assert adapted.data[0].embedding != base.data[0].embedding
    assert adapted.model == "support"


@pytest.mark.parametrize("wrong", ["", "x" * 4 * 2048 + "y"], ids=["empty", "long"])
async def test_an_error_names_the_input(stack: Rig, wrong: str) -> None:
    async with sdk(stack) as client:
        with pytest.raises(BadRequestError) as caught:
            await client.embeddings.create(model=MODEL.name, input=["fine", wrong])
    assert caught.value.param == "input[1]"


async def test_computation_for_a_client_that_left_is_billed(stack: Rig) -> None:
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = Behaviour(stall_after_tokens=2)
    async with sdk(stack) as client:
        asking = asyncio.create_task(client.embeddings.create(model=MODEL.name, input=TEXTS))
        await until(lambda: stack.engine.stats().prompt_tokens == 3 + 3)
        asking.cancel()
        (entry,) = await stack.gateway.ledger.settled()
    assert entry.usage.prompt_tokens == 3 + 3


@dataclass
class Pair:
    """Two agents at one gateway, one of which runs the request."""

    gateway: Gateway
    rigs: list[Rig]

    async def until_one_is_busy(self) -> tuple[Rig, Rig]:
        """The agent that has computed the first text, and the other one."""
        await until(lambda: any(one.engine.stats().prompt_tokens for one in self.rigs))
        first, second = self.rigs
        return (first, second) if first.engine.stats().prompt_tokens else (second, first)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(gateway(holding=Holding(60.0)))
        made = Pair(one, [])
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            engine = SyntheticEngine(MODEL, Behaviour(stall_after_tokens=1))
            stack.push_async_callback(engine.close)
            agent = agent_on(engine, tmp_path / name, [one], id=name)
            made.rigs.append(await stack.enter_async_context(agent))
        await until(lambda: len(one.hub.snapshot()) == 2)
        yield made


@pytest.mark.parametrize("why", [MoveReason.LOST, MoveReason.DRAINED])
async def test_it_moves_to_another_engine_and_is_billed_once(pair: Pair, why: MoveReason) -> None:
    async with pair.gateway.client() as client:
        body = {"model": MODEL.name, "input": TEXTS}
        asking = asyncio.create_task(client.post(PATH, json=body))
        going, other = await pair.until_one_is_busy()
        other.engine.behaviour = Behaviour()  # type: ignore[attr-defined]
        if why is MoveReason.LOST:
            going.running.cancel()
        else:
            await going.agent.drain(0.0)
        answer = await asking
        assert answer.json()["usage"]["prompt_tokens"] == TOKENS
        await until(lambda: [e.attempt for e in pair.gateway.ledger.entries.values()] == [2])
    (entry,) = pair.gateway.ledger.entries.values()
    assert entry.usage.prompt_tokens == TOKENS
    assert pair.gateway.hub.moves == {(why, MoveResult.BEGUN_ANEW): 1}


async def test_a_long_list_does_not_block_the_engine(stack: Rig) -> None:
    """A request that arrives meanwhile starts beside it and ends before it."""
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.step_tokens = 8
    stack.engine.behaviour = Behaviour(tokens_per_second=500.0)
    many = {"model": MODEL.name, "input": TEXTS * 100}
    async with stack.gateway.client() as mine, stack.gateway.client("globex") as theirs:
        asking = asyncio.create_task(mine.post(PATH, json=many))
        await until(lambda: stack.engine.stats().prompt_tokens)
        for _ in range(3):
            few = await theirs.post(PATH, json=many | {"input": TEXTS})
            assert few.status_code == 200 and not asking.done()
        assert (await asking).status_code == 200


@pytest.fixture(params=["pooling", "generate"])
async def one_sort(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    engine = SyntheticEngine.of(EngineProfile(model="m", runner=request.param))
    async with rig(tmp_path, engine=engine) as made:
        yield made
    await engine.close()


async def test_an_unsupported_operation_is_refused_at_once(one_sort: Rig) -> None:
    info = one_sort.engine.info
    bodies = {
        "/v1/chat/completions": chat(info.name),
        PATH: {"model": info.name, "input": "x"},
        "/v1/tokenize": {"model": info.name, "prompt": "x"},
    }
    async with one_sort.gateway.client() as client:
        answers = {path: await client.post(path, json=body) for path, body in bodies.items()}
    embeds = "embeddings" in info.operations
    assert answers.pop("/v1/tokenize").status_code == 200
    assert {path: answer.status_code for path, answer in answers.items()} == {
        "/v1/chat/completions": 400 if embeds else 200,
        PATH: 200 if embeds else 400,
    }
    (refused,) = [one.json()["error"] for one in answers.values() if one.status_code == 400]
    assert refused["param"] == "model"
    assert ("/v1/embeddings" in refused["message"]) == embeds
    assert one_sort.gateway.limits.open == {}
