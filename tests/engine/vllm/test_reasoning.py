"""A real engine whose parser separates reasoning from answers, and its end."""

from __future__ import annotations

import multiprocessing
from collections.abc import AsyncIterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from inference.agent.engines.engine import Engine
from inference.agent.engines.profile import EngineProfile
from inference.errors import EngineFailed, InvalidRequest
from tests.engine.driving import ask, said, work_of
from tests.engine.test_responses import STREAM, asked, response
from tests.engine.vllm.test_resume import HELD, JSON, SEEDED, check
from tests.engine.vllm.test_vllm import WEATHER

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]


@pytest.fixture(scope="module")
def others() -> set[BaseProcess]:
    """The processes of other engines."""
    return set(multiprocessing.active_children())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def thoughtful(
    profile: EngineProfile, base: Path, others: set[BaseProcess]
) -> AsyncIterator[Engine]:
    """A real engine with a parser that separates reasoning from answers."""
    from inference.agent.engines.vllm.engine import VLLMEngine

    template = base.with_name("thoughtful.jinja")
    template.write_text("<|bos|>{% for m in messages %}{{ m.content }}{% endfor %}")
    given: dict[str, Any] = {
        "reasoning_parser": "deepseek_r1",
        "chat_template": template,
        "tool_parser": None,
    }
    engine = await VLLMEngine.start(replace(profile, **given))
    yield engine
    await engine.close()


async def test_reasoning_is_told_apart(thoughtful: Engine) -> None:
    whole = await ask(thoughtful)
    streamed = await ask(thoughtful, stream=True)
    with pytest.raises(InvalidRequest) as caught:
        await ask(thoughtful, tools=[WEATHER])
    message = whole.response["choices"][0]["message"]
    assert message["reasoning"] and not message["content"], "it never ends its thought"
    parts = [chunk["choices"][0]["delta"].get("reasoning") or "" for chunk in streamed.chunks]
    assert "".join(parts) == message["reasoning"]
    for answer in (whole, streamed):
        assert answer.tokens == answer.meter.completion_tokens == 8
    assert caught.value.param == "tools"


@STREAM
async def test_thoughts_are_an_item(thoughtful: Engine, stream: bool) -> None:
    answer = await asked(thoughtful, stream=stream, max_output_tokens=40)
    found = response(answer, stream=stream)
    thoughts = found["output"][0]
    assert thoughts["type"] == "reasoning" and thoughts["content"][0]["text"]
    counted = found["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert counted == answer.meter.reasoning_tokens


async def test_thoughts(thoughtful: Engine) -> None:
    thinks: dict[str, Any] = SEEDED | {"logit_bias": {"6": -100}}
    # Keeps the token that ends the reasoning in the text. Otherwise vLLM's parser loses output that
    # arrives together with it, as happens on a busy machine.
    held = HELD | {"response_format": JSON, "logit_bias": {"6": 6}, "skip_special_tokens": False}
    whole = await check(thoughtful, "chat", stream=True, **thinks)
    assert said(whole.chunks)[0]["delta"]["reasoning"], "it thinks to its end"
    await check(thoughtful, "chat", **thinks)
    await check(thoughtful, "chat", stream=True, include_reasoning=False, **thinks)
    whole = await check(thoughtful, "chat", stream=True, **held)
    assert said(whole.chunks)[0]["delta"]["content"], "it answers as it is held to"


async def test_a_dead_engine_core_fails_its_requests(
    thoughtful: Engine, others: set[BaseProcess]
) -> None:
    """The last test of this engine."""
    (core,) = set(multiprocessing.active_children()) - others
    bodies: list[dict[str, Any]] = [{}, {"n": 2, "temperature": 1.0}]
    streams = [thoughtful.generate(work_of(max_tokens=400, stream=True, **body)) for body in bodies]
    for stream in streams:
        await anext(stream)
    core.kill()
    for stream in streams:
        with pytest.raises(EngineFailed):
            async for _ in stream:
                pass
    assert not thoughtful.alive
    with pytest.raises(EngineFailed):
        await ask(thoughtful)
