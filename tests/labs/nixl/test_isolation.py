"""What a prefill engine hands over is of one tenant, adapter and prompt, on two real engines
(`make nixl`). vLLM's own connector reads whatever blocks it is told to."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from inference.agent.engines.engine import Engine, LocalAdapter
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.profiles.named import named
from inference.link.wire import PREFILLED, Handover
from tests.engine.driving import Answer, run, work_of
from tests.engine.factory import MAX_MODEL_LEN, AdapterFactory, make_base

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("nixl") is None, reason="needs `make nixl`"),
    pytest.mark.asyncio(loop_scope="module"),
]

Adapters = tuple[LocalAdapter, LocalAdapter]
TEXT = "The quick brown fox jumps over the lazy dog, and then it rests a while. " * 6
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 24}


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> AdapterFactory:
    base = make_base(tmp_path_factory.mktemp("base"))
    return AdapterFactory(base, tmp_path_factory.mktemp("adapters"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prefill(factory: AdapterFactory) -> AsyncIterator[Engine]:
    async for engine in started("prefill", factory):
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def decode(factory: AdapterFactory) -> AsyncIterator[Engine]:
    async for engine in started("decode", factory):
        yield engine


async def started(name: str, factory: AdapterFactory) -> AsyncIterator[Engine]:
    from inference.agent.engines.vllm.engine import VLLMEngine
    from inference.agent.engines.vllm.handover import SIDE_CHANNEL

    os.environ.pop(SIDE_CHANNEL, None)  # of another engine of this process
    profile = EngineProfile.on_cpu(
        str(factory.base),
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=8,
        kv_cache_memory_bytes=16 << 20,
        **named(name).settings,
    )
    engine = await VLLMEngine.start(profile)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapters(prefill: Engine, decode: Engine, factory: AdapterFactory) -> Adapters:
    """Two that differ, loaded on both engines."""
    made = factory.make(seed=1, name="one"), factory.make(seed=2, name="other")
    for engine in (prefill, decode):
        for adapter in made:
            await engine.load(adapter)
    return made


async def computed(engine: Engine, **of: Any) -> Handover:
    """What the prefill engine hands over of the prompt."""
    answer = await run(engine, replace(work_of(**CHAT, **of), prefill=True))
    handover = answer.outputs[-1].handover
    assert answer.finish_reason == PREFILLED and handover is not None
    assert answer.meter.prompt_tokens and not answer.meter.completion_tokens
    return handover


async def given(engine: Engine, handover: Handover, **of: Any) -> Answer:
    """The decode engine's answer."""
    return await run(engine, replace(work_of(**(CHAT | of)), handover=handover))


def fetched(answer: Answer) -> bool:
    """Whether the prompt came from the prefill engine: the salts of these tests are new, so it is
    in no cache."""
    return answer.meter.cached_tokens > 0


async def test_the_prompt_is_fetched_and_the_answer_is_the_same(
    prefill: Engine, decode: Engine, adapters: Adapters
) -> None:
    several: list[dict[str, Any]] = [{}, {"adapter": adapters[0]}]
    for of in several:
        plain = await run(decode, work_of(**CHAT, salt="plain", **of))
        again = await given(decode, await computed(prefill, salt="own", **of), salt="own", **of)
        assert fetched(again) and not fetched(plain)
        assert again.text == plain.text


async def crossing(
    prefill: Engine, decode: Engine, theirs: dict[str, Any], own: dict[str, Any]
) -> None:
    """The decode engine is given what is of another request."""
    plain = await run(decode, work_of(**(CHAT | own | {"salt": "undisturbed"})))
    answer = await given(decode, await computed(prefill, **theirs), **own)
    assert not fetched(answer) and answer.text == plain.text


async def test_it_does_not_cross_tenants(prefill: Engine, decode: Engine) -> None:
    await crossing(prefill, decode, {"salt": "tenant-1"}, {"salt": "tenant-2"})


async def test_it_does_not_cross_adapters(
    prefill: Engine, decode: Engine, adapters: Adapters
) -> None:
    one, other = adapters
    for theirs, own in ((one, other), (one, None), (None, one)):
        salt = f"of-{theirs and theirs.int_id}-{own and own.int_id}"
        await crossing(
            prefill, decode, {"salt": salt, "adapter": theirs}, {"salt": salt, "adapter": own}
        )


async def test_it_does_not_cross_prompts(prefill: Engine, decode: Engine) -> None:
    text = TEXT.replace("lazy", "busy")
    messages = [{"role": "user", "content": text}]
    await crossing(prefill, decode, {"salt": "same"}, {"salt": "same", "messages": messages})


async def test_it_is_not_read_when_it_may_have_been_freed(prefill: Engine, decode: Engine) -> None:
    handover = await computed(prefill, salt="late")
    answer = await given(decode, msgspec.structs.replace(handover, valid_s=-1.0), salt="late")
    plain = await run(decode, work_of(**CHAT, salt="in time"))
    assert not fetched(answer) and answer.text == plain.text


async def test_it_is_computed_if_nobody_keeps_it(prefill: Engine, decode: Engine) -> None:
    """As after the death of the prefill engine: its address does not answer."""
    from inference.agent.engines.vllm.handover import NixlParams

    handover = await computed(prefill, salt="gone")
    params = msgspec.msgpack.decode(handover.params, type=NixlParams)
    nowhere = msgspec.structs.replace(params, remote_engine_id="nobody", remote_port=1)
    lost = msgspec.structs.replace(handover, params=msgspec.msgpack.encode(nowhere))
    answer = await given(decode, lost, salt="gone")
    plain = await run(decode, work_of(**CHAT, salt="here"))
    assert answer.text == plain.text


async def test_reading_ends_what_is_kept(prefill: Engine, decode: Engine) -> None:
    """Far more prompts than the prefill engine's cache holds at once."""
    room = prefill.info.kv_tokens
    taken = 0
    while taken < 3 * room:
        handover = await computed(prefill, salt=f"n{taken}")
        answer = await given(decode, handover, salt=f"n{taken}")
        assert fetched(answer)
        taken += answer.meter.prompt_tokens
