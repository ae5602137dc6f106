"""vLLM continues another engine's answer as if its own: resumed compared with undisturbed ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from inference.agent.engines.engine import Engine, LocalAdapter, Meter
from inference.errors import EngineFailed, InvalidRequest
from inference.link.accounts import Usage
from inference.link.wire import Resume
from tests.engine.driving import Answer, ask, assert_same, goes_on, run, said, work_of
from tests.engine.factory import AdapterFactory

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 40}
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 10},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
JSON = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
REGEX = {"regex": "[a-z]{5,9}-[0-9]{3}-[a-z]{4}"}
HELD: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 150, "ignore_eos": False}
LONG = [(7 * at) % 380 + 8 for at in range(300)]
"""More tokens than the engine computes in one step."""

CHATS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "top_p and top_k": SEEDED | {"top_p": 0.9, "top_k": 50},
    "frequency and presence": GREEDY | {"frequency_penalty": 1.0, "presence_penalty": 0.5},
    "repetition": GREEDY | {"repetition_penalty": 1.3},
    "logit_bias": SEEDED | {"logit_bias": {"77": 5}},
    "min_tokens": {"temperature": 1.0, "seed": 1, "min_tokens": 20, "max_tokens": 40}
    | {"ignore_eos": False},
    "log-probabilities": GREEDY | {"logprobs": True, "top_logprobs": 3},
    "json schema": HELD | {"response_format": JSON},
    "json schema, greedy": HELD | {"response_format": JSON, "temperature": 0.0},
    "regex": HELD | {"structured_outputs": REGEX},
    "tools required": HELD | {"tools": [WEATHER], "tool_choice": "required"},
    "tools required, greedy": HELD
    | {"tools": [WEATHER], "tool_choice": "required", "temperature": 0.0},
    "tools named": HELD | {"tools": [WEATHER], "tool_choice": NAMED},
    "tools auto": SEEDED | {"tools": [WEATHER], "tool_choice": "auto"},
    "tools none": SEEDED | {"tools": [WEATHER], "tool_choice": "none"},
    "two choices": SEEDED | {"n": 2},
    "two choices, log-probabilities": SEEDED | {"n": 2, "logprobs": True, "top_logprobs": 1},
    "three choices, json schema": HELD | {"n": 3, "response_format": JSON},
    "two choices, tools": HELD | {"n": 2, "tools": [WEATHER], "tool_choice": "required"},
    "token ids": SEEDED | {"n": 2, "return_token_ids": True},
    "tokens by their ids": GREEDY | {"logprobs": True, "return_tokens_as_token_ids": True},
    "tools named, token ids": HELD
    | {"tools": [WEATHER], "tool_choice": NAMED, "return_token_ids": True},
    "echo": SEEDED
    | {"messages": [{"role": "assistant", "content": "I am"}], "echo": True}
    | {"return_token_ids": True},
    "bytes of characters": SEEDED | {"allowed_token_ids": list(range(130, 263)), "seed": 11},
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "long prompt": SEEDED | {"prompt": LONG},
    "prompts": SEEDED | {"prompt": ["Who are you?", "The quick", "What"]},
    "prompts, two choices each": SEEDED | {"prompt": ["Who are you?", "The"], "n": 2},
    "echo": SEEDED | {"echo": True},
    "log-probabilities": SEEDED | {"logprobs": 2},
    "prompts, token ids": SEEDED | {"prompt": ["Who?", "The"], "n": 2, "return_token_ids": True},
    "echo, log-probabilities": SEEDED | {"echo": True, "logprobs": 1, "n": 2},
}


def cuts(whole: Answer) -> list[int]:
    """Outputs after which the other engine is lost: the first, the last, and one in between."""
    outputs = len(whole.outputs)
    return sorted({1, max(1, outputs // 2), outputs - 1})


async def check(vllm: Engine, kind: str, *, every: bool = False, **given: Any) -> Answer:
    """Resume an answer after each of some outputs, concurrently, and compare; returns the
    undisturbed answer."""
    whole = await ask(vllm, kind, wants_ids=True, **given)
    assert len(whole.outputs) > 1
    at = range(1, len(whole.outputs)) if every else cuts(whole)
    for moved in await asyncio.gather(*(goes_on(vllm, whole, cut, kind, **given) for cut in at)):
        assert_same(moved, whole)
    return whole


@pytest.mark.parametrize("name", CHATS)
async def test_a_chat_that_streams(vllm: Engine, name: str) -> None:
    await check(vllm, "chat", stream=True, **CHATS[name])


@pytest.mark.parametrize("name", COMPLETIONS)
async def test_a_completion_that_streams(vllm: Engine, name: str) -> None:
    await check(vllm, "completion", stream=True, **COMPLETIONS[name])


WHOLE = ("seeded", "json schema", "tools required", "tools auto", "two choices", "token ids")


@pytest.mark.parametrize("name", [*WHOLE, "three choices, json schema"])
async def test_a_whole_chat(vllm: Engine, name: str) -> None:
    await check(vllm, "chat", **CHATS[name] | {"max_tokens": 150})


@pytest.mark.parametrize(
    "name", ["prompts", "prompts, two choices each", "echo", "prompts, token ids"]
)
async def test_a_whole_completion(vllm: Engine, name: str) -> None:
    await check(vllm, "completion", **COMPLETIONS[name] | {"max_tokens": 70})


@pytest.mark.parametrize("tools", [[], [WEATHER]])
async def test_a_stop_string_wherever_it_is_cut(vllm: Engine, tools: list[Any]) -> None:
    given: dict[str, Any] = SEEDED | ({"tools": tools, "tool_choice": "auto"} if tools else {})
    plain = await ask(vllm, stream=True, **given)
    text: str = said(plain.chunks)[0]["delta"]["content"] if tools else plain.text
    stop = text[len(text) // 2 :][:7]
    for fields in ({}, {"include_stop_str_in_output": True}):
        asked = given | fields | {"stop": [stop, "never said"], "stream": True}
        whole = await check(vllm, "chat", every=True, **asked)
        assert whole.finish_reason == "stop"
        moved = await goes_on(vllm, whole, len(whole.outputs), **asked)
        assert moved.finish_reason == "stop", "found in what was replayed"
        assert moved.ids == whole.ids


async def test_a_finish_reason_is_recovered_from_the_tokens(vllm: Engine) -> None:
    """It is found whatever the reason, and whether or not the gateway states it."""
    first = await ask(vllm, wants_ids=True, **SEEDED)
    token = first.ids[0][20]
    for fields, reason in (
        ({"stop_token_ids": [token]}, "stop"),
        ({"max_tokens": 9}, "length"),
        (HELD | {"structured_outputs": REGEX}, "stop"),
    ):
        asked: dict[str, Any] = SEEDED | {"stream": True} | fields
        whole = await ask(vllm, wants_ids=True, **asked)
        assert whole.finish_reason == reason
        moved = await goes_on(vllm, whole, len(whole.outputs), **asked)
        (word,) = moved.outputs[len(whole.outputs) :]
        assert (word.finish_reason, word.text, word.ids) == (reason, "", {})


async def test_a_finished_choice_is_not_generated_again(vllm: Engine) -> None:
    given: dict[str, Any] = {"n": 2, "max_tokens": 60} | SEEDED
    whole = await ask(vllm, wants_ids=True, **given)
    meter = Meter(whole.meter.prompt_tokens, 0, 30)
    ids = {0: whole.ids[0][:20], 1: whole.ids[1][:10]}
    resume = Resume(ids, {0: "stop"}, Usage(meter.prompt_tokens, 0, 30))
    work = replace(work_of(**given), meter=meter, resume=resume)
    answer = await run(vllm, work)
    first, second = answer.response["choices"]
    assert (first["finish_reason"], second["finish_reason"]) == ("stop", "length")
    assert whole.response["choices"][0]["message"]["content"].startswith(
        first["message"]["content"]
    )
    assert second == whole.response["choices"][1]
    assert work.meter.completion_tokens == 20 + len(whole.ids[1])


@pytest_asyncio.fixture(loop_scope="session")
async def adapter(vllm: Engine, factory: AdapterFactory) -> AsyncIterator[LocalAdapter]:
    adapter = factory.make(seed=5, strength=0.2)
    await vllm.load(adapter)
    yield adapter
    await vllm.unload(adapter)


@pytest.mark.parametrize("fields", [GREEDY, SEEDED | {"n": 2}])
async def test_an_adapter(vllm: Engine, adapter: LocalAdapter, fields: dict[str, Any]) -> None:
    await check(vllm, "chat", stream=True, adapter=adapter, **fields)


async def test_many_at_once(vllm: Engine) -> None:
    """Sixteen seeded answers continue in one batch, each from another position."""
    given: list[dict[str, Any]] = [
        {"prompt": LONG[at : at + 20 + 9 * at], "temperature": 1.0, "seed": at, "max_tokens": 40}
        | {"stream": True}
        for at in range(16)
    ]
    wholes = await asyncio.gather(
        *(ask(vllm, "completion", wants_ids=True, **one) for one in given)
    )
    moves = await asyncio.gather(
        *(
            goes_on(vllm, whole, max(1, len(whole.outputs) * at // 16), "completion", **one)
            for at, (whole, one) in enumerate(zip(wholes, given, strict=True))
        )
    )
    for moved, whole in zip(moves, wholes, strict=True):
        assert_same(moved, whole)


async def test_replayed_tokens_enter_the_prefix_cache(vllm: Engine) -> None:
    given: dict[str, Any] = {"prompt": LONG, "max_tokens": 64, "stream": True} | GREEDY
    whole = await ask(vllm, "completion", wants_ids=True, salt="own", **given)
    assert_same(await goes_on(vllm, whole, 30, "completion", salt="own", **given), whole)
    assert_same(await goes_on(vllm, whole, 30, "completion", salt="another", **given), whole)


async def test_a_whole_answer_with_log_probabilities_is_not_resumed(vllm: Engine) -> None:
    tools: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "auto"}
    scored: dict[str, Any] = {"logprobs": True}
    of_prompt: dict[str, Any] = {"prompt_logprobs": 0}
    for fields in (scored, scored | tools, of_prompt, {"echo": True}):
        resume = Resume({0: [20, 21]}, {}, Usage(9, 0, 2))
        work = replace(work_of(**fields), resume=resume)
        with pytest.raises(EngineFailed):
            await run(vllm, work)


async def test_the_limit_of_log_probabilities_is_that_of_the_whole_answer(
    vllm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inference.agent.engines.vllm import serving

    given: dict[str, Any] = {"logprobs": True, "top_logprobs": 9, "stream": True, "max_tokens": 30}
    whole = await ask(vllm, wants_ids=True, **given)
    monkeypatch.setattr(serving, "MAX_LOGPROBS", 250)
    with pytest.raises(InvalidRequest, match="250 log-probabilities"):
        await goes_on(vllm, whole, 20, **given)


async def test_a_grammar_refuses_what_another_engine_cannot_have_generated(vllm: Engine) -> None:
    resume = Resume({0: [20, 21, 22]}, {}, Usage(9, 0, 3))
    with pytest.raises(InvalidRequest):
        await run(vllm, replace(work_of(structured_outputs=REGEX), resume=resume))
    assert (await ask(vllm)).tokens == 8
