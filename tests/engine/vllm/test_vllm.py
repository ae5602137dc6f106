"""What only the real engine does: vLLM's full path, its errors, and its death."""

from __future__ import annotations

import asyncio
import gc
import json
import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from inference.agent.engines.engine import Engine, LocalAdapter
from inference.agent.engines.sleeping import Sleeper
from inference.errors import InvalidRequest, RequestError
from tests.engine.driving import QUESTION, ask, run, running_after_a_step, work_of
from tests.engine.factory import AdapterFactory

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

SCHEMA = {
    "type": "object",
    "properties": {"open": {"type": "boolean"}},
    "required": ["open"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA},
}
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""The text of a character whose last bytes were not generated."""
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest_asyncio.fixture(loop_scope="session")
async def adapter(vllm: Engine, factory: AdapterFactory) -> AsyncIterator[LocalAdapter]:
    adapter = factory.make(seed=2)
    await vllm.load(adapter)
    yield adapter
    await vllm.unload(adapter)


async def test_log_probabilities_of_a_chat(vllm: Engine) -> None:
    plain = await ask(vllm)
    answer = await ask(vllm, logprobs=True, top_logprobs=3)
    (choice,) = answer.response["choices"]
    assert choice["message"]["content"] == plain.text
    content = choice["logprobs"]["content"]
    assert len(content) == answer.meter.completion_tokens == 8
    for token in content:
        assert math.isfinite(token["logprob"])
        assert len(token["top_logprobs"]) == 3
        assert token["logprob"] == max(top["logprob"] for top in token["top_logprobs"])


@pytest.mark.parametrize("stream", [True, False])
async def test_token_ids_are_those_of_the_text_by_choice_over_all_prompts(
    vllm: Engine, base: Path, stream: bool
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    asked = {"prompt": ["Who are you?", "The quick"], "n": 2, "temperature": 0.9, "seed": 3}
    answer = await ask(vllm, "completion", stream=stream, wants_ids=True, **asked)
    texts = dict.fromkeys(range(4), "")
    for body in answer.chunks if stream else [answer.response]:
        for choice in body["choices"]:
            texts[choice["index"]] += choice["text"]
    assert sorted(answer.ids) == [0, 1, 2, 3]
    for choice, ids in answer.ids.items():
        text = tokenizer.decode(ids, skip_special_tokens=True)
        assert text.rstrip(UNFINISHED) == texts[choice].rstrip(UNFINISHED)


async def test_it_sleeps_and_wakes_with_its_adapters(vllm: Sleeper, adapter: LocalAdapter) -> None:
    """On a CPU it gives no memory back: only the calls are tested."""
    before = [(await ask(vllm, adapter=one)).text for one in (None, adapter)]
    await vllm.sleep()
    await vllm.ping()
    await vllm.wake()
    assert [(await ask(vllm, adapter=one)).text for one in (None, adapter)] == before


async def test_log_probabilities_stream(vllm: Engine) -> None:
    whole = await ask(vllm, logprobs=True)
    streamed = await ask(vllm, logprobs=True, stream=True)
    found = [
        token["token"]
        for chunk in streamed.chunks
        for choice in chunk["choices"]
        if choice.get("logprobs")
        for token in choice["logprobs"]["content"]
    ]
    content = whole.response["choices"][0]["logprobs"]["content"]
    assert found == [token["token"] for token in content]
    assert streamed.tokens == 8


async def test_a_completion_echoes_its_prompt_with_log_probabilities(
    vllm: Engine, adapter: LocalAdapter
) -> None:
    answer = await ask(vllm, "completion", echo=True, logprobs=1, adapter=adapter)
    (choice,) = answer.response["choices"]
    assert choice["text"].startswith("Who are you?")
    assert len(choice["logprobs"]["tokens"]) == answer.meter.prompt_tokens + 8


async def test_log_probabilities_are_bounded(vllm: Engine) -> None:
    asked = {"prompt": [[5] * 32] * 320, "echo": True, "logprobs": 20, "max_tokens": 1}
    with pytest.raises(InvalidRequest, match="5000 log-probabilities") as refused:
        await ask(vllm, "completion", **asked)
    assert refused.value.param == "logprobs"


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities_are_bounded_whether_or_not_they_stream(
    vllm: Engine, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inference.agent.engines.vllm import serving

    monkeypatch.setattr(serving, "MAX_LOGPROBS", 100)
    work = work_of(logprobs=True, top_logprobs=9, max_tokens=400, stream=stream)
    with pytest.raises(InvalidRequest, match="100 log-probabilities") as refused:
        await run(vllm, work)
    assert refused.value.param == "logprobs"
    assert 10 <= work.meter.completion_tokens < 400, "it ended there"


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_a_whole_answer_is_what_its_stream_was(vllm: Engine, kind: str) -> None:
    """Log-probabilities are assembled from a stream's; texts come from the same tokens."""
    further: dict[str, Any] = {"logprobs": 3, "echo": True, "prompt": [9] * 40}
    if kind == "chat":
        further = {"logprobs": True, "top_logprobs": 3}
    asked = {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 12} | further
    whole = await ask(vllm, kind, **asked)
    streamed = await ask(vllm, kind, stream=True, **asked)
    texts, logprobs = ["", "", ""], [dict[str, list[Any]]() for _ in range(3)]
    for chunk in streamed.chunks:
        for choice in chunk["choices"]:
            at = choice["index"]
            texts[at] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            for name, values in (choice["logprobs"] or {}).items():
                logprobs[at].setdefault(name, []).extend(values or [])
    for at, choice in enumerate(whole.response["choices"]):
        assert (choice["index"], choice["finish_reason"]) == (at, "length")
        assert (choice["message"]["content"] if kind == "chat" else choice["text"]) == texts[at]
        told = {name: some for name, some in choice["logprobs"].items() if some}
        assert told == {name: some for name, some in logprobs[at].items() if some}
    assert len(set(texts)) == 3
    assert whole.response["usage"]["completion_tokens"] == whole.tokens == 36


@pytest.mark.parametrize(
    "held",
    [
        {"structured_outputs": {"grammar": "root ::= root"}},
        {"structured_outputs": {"choice": ["yes", "no"]}, "allowed_token_ids": [5, 6]},
    ],
    ids=["nothing", "another"],
)
@pytest.mark.parametrize("n", [1, 2])
async def test_an_unsatisfiable_constraint_is_a_client_error(
    vllm: Engine, held: dict[str, Any], n: int
) -> None:
    with pytest.raises(InvalidRequest):
        await ask(vllm, n=n, temperature=1.0, **held)
    assert vllm.alive


async def test_a_validation_error_is_about_the_given_type(vllm: Engine) -> None:
    with pytest.raises(InvalidRequest, match="at most 4 items"):
        await ask(vllm, stop=list("abcde"))
    with pytest.raises(InvalidRequest, match="should be a valid string"):
        await ask(vllm, stop=5)


async def test_prompts_in_one_completion_are_counted_together(vllm: Engine) -> None:
    answer = await ask(vllm, "completion", prompt=[[5, 6, 7], [8, 9]])
    assert [choice["index"] for choice in answer.response["choices"]] == [0, 1]
    assert answer.meter.prompt_tokens == 5
    assert answer.meter.completion_tokens == 16


async def test_nobody_waits_for_all_prompts_of_one_completion(vllm: Engine) -> None:
    prompts = [[5 + i] * 200 for i in range(60)]
    many = work_of("completion", prompt=prompts, max_tokens=2, stream=True)
    async with aclosing(vllm.generate(many)) as outputs:
        await anext(outputs)
        await ask(vllm, max_tokens=1)
        assert many.meter.prompt_tokens < 60 * 200


async def test_a_seed_repeats_and_another_differs(vllm: Engine) -> None:
    one, two = [await ask(vllm, temperature=1.0, seed=5, max_tokens=16) for _ in range(2)]
    other = await ask(vllm, temperature=1.0, seed=6, max_tokens=16)
    assert one.text == two.text != other.text


async def test_choices_differ_and_a_cut_costs_what_came(vllm: Engine) -> None:
    answer = await ask(vllm, n=3, temperature=1.0, seed=5, max_tokens=16)
    assert len({choice["message"]["content"] for choice in answer.response["choices"]}) == 3
    assert answer.meter.completion_tokens == 48


async def test_logit_bias_forces_and_forbids(vllm: Engine) -> None:
    forced = await ask(vllm, "completion", logit_bias={"77": 100}, max_tokens=4, logprobs=0)
    tokens = forced.response["choices"][0]["logprobs"]["tokens"]
    assert len(set(tokens)) == 1
    forbidden = await ask(vllm, "completion", logit_bias={"77": -100}, max_tokens=4, logprobs=0)
    assert tokens[0] not in forbidden.response["choices"][0]["logprobs"]["tokens"]


async def test_a_frequency_penalty_changes_the_answer(vllm: Engine) -> None:
    body: dict[str, Any] = {"logit_bias": {"77": 100, "78": 90}, "max_tokens": 20}
    plain = await ask(vllm, "completion", **body)
    answer = await ask(vllm, "completion", frequency_penalty=2.0, **body)
    assert len(set(plain.text)) == 1
    assert len(set(answer.text)) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_follows_a_json_schema(vllm: Engine, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "shop", "schema": SCHEMA}}
    answer = await ask(vllm, response_format=form, max_tokens=60, ignore_eos=False, stream=stream)
    assert answer.finish_reason == "stop"
    assert isinstance(json.loads(answer.text)["open"], bool)


async def test_an_answer_is_a_json_object(vllm: Engine) -> None:
    answer = await ask(vllm, response_format={"type": "json_object"}, max_tokens=30)
    assert answer.text.lstrip().startswith("{")


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_is_called_as_its_schema_says(vllm: Engine, choice: Any, stream: bool) -> None:
    body = {"tools": [WEATHER], "tool_choice": choice, "stream": stream}
    body["parallel_tool_calls"] = False
    answer = await ask(vllm, max_tokens=150, ignore_eos=False, **body)
    name, arguments = _called(answer.chunks if stream else [answer.response])
    assert name == "get_weather"
    assert isinstance(json.loads(arguments)["open"], bool)
    assert answer.tokens == answer.meter.completion_tokens


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_a_call_that_is_cut_is_the_same_whole_and_streamed(vllm: Engine, choice: Any) -> None:
    named = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 36, "ignore_eos": False}
    (early,) = (await ask(vllm, **named)).response["choices"][0]["message"]["tool_calls"]
    assert early["function"] == {"name": "get_weather", "arguments": ""}
    given = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 50, "ignore_eos": False}
    whole = await ask(vllm, **given)
    streamed = await ask(vllm, **given, stream=True)
    called = _called([whole.response])
    assert called == _called(streamed.chunks)
    assert called[0] == "get_weather" and called[1].startswith("{")
    assert (whole.finish_reason, streamed.finish_reason) == ("length", "length")
    (choice,) = whole.response["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", None)
    assert call["type"] == "function" and call["id"]


async def test_the_decoded_body_is_not_kept(vllm: Engine) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    work = work_of(max_tokens=400, stream=True)
    async with aclosing(vllm.generate(work)) as outputs:
        await anext(outputs)
        assert work.body == {}
        gc.collect()  # collects reference cycles of earlier requests
        assert not [one for one in gc.get_objects() if type(one) is ChatCompletionRequest]


async def test_a_tool_may_be_left_alone(vllm: Engine) -> None:
    answer = await ask(vllm, tools=[WEATHER], tool_choice="auto")
    assert answer.response["choices"][0]["message"]["content"]
    assert answer.finish_reason == "length"


def _called(bodies: list[dict[str, Any]]) -> tuple[str, str]:
    parts = [
        call["function"]
        for body in bodies
        for choice in body["choices"]
        for call in choice.get("delta", choice.get("message")).get("tool_calls") or []
    ]
    names = [part["name"] for part in parts if part.get("name")]
    return names[0], "".join(part.get("arguments") or "" for part in parts)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"top_p": 7}, "top_p"),
        ({"n": 1000}, "n"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"max_tokens": 10_000}, "max_tokens"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": "all"}, None),
        ({"tools": [WEATHER], "tool_choice": "perhaps"}, "tool_choice"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 10_000}, None),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "poem"}}, None),
        ({"structured_outputs": {"regex": "("}}, None),
        ({"seed": 2**70}, "seed"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids[0]"),
    ],
)
async def test_what_vllm_refuses_is_a_client_error(
    vllm: Engine, body: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(RequestError) as caught:
        await ask(vllm, **body)
    if param is not None:
        assert caught.value.param == param
    assert caught.value.http_status == 400
    assert "pydantic" not in caught.value.message
    assert (await ask(vllm)).tokens == 8


async def test_a_bad_schema_is_a_client_error(vllm: Engine) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    with pytest.raises(InvalidRequest, match="nonsense"):
        await ask(vllm, response_format=form)


async def test_an_error_on_the_full_path_is_the_engines_own(vllm: Engine) -> None:
    wrong: dict[str, Any] = {"n": 2, "temperature": 1.0, "logit_bias": {"999999": 1}}
    for kind in ("chat", "completion"):
        for stream in (True, False):
            with pytest.raises(InvalidRequest) as caught:
                await ask(vllm, kind, stream=stream, **wrong)
            assert caught.value.param == "logit_bias"
    assert await running_after_a_step(vllm) == 0


async def test_a_request_in_each_lane_is_served(vllm: Engine) -> None:
    answers = await asyncio.gather(*(ask(vllm, messages=QUESTION, max_tokens=4) for _ in range(40)))
    assert {answer.tokens for answer in answers} == {4}


async def test_the_probe_finds_an_adapter_that_does_nothing(
    vllm: Engine, factory: AdapterFactory, adapter: LocalAdapter
) -> None:
    inert = factory.changed(adapter, lambda name, t: t * 0 if "lora_B" in name else t)
    report = await vllm.probe(inert)
    assert report.finite
    assert report.max_logprob_delta < 1e-5
    assert report.adapter_text == report.base_text
    await vllm.unload(inert)


async def test_the_probe_computes_rows_of_tokens(vllm: Engine, adapter: LocalAdapter) -> None:
    prompt = (await vllm.probe(adapter)).prompts[0]
    (row,) = (await vllm.probe(adapter, [prompt.ids])).rows
    assert row.base == pytest.approx(prompt.base, abs=1e-4) != row.adapted
    assert row.adapted == pytest.approx(prompt.adapted, abs=1e-4)
    await vllm.unload(adapter)


async def test_the_probe_finds_an_adapter_of_nan(
    vllm: Engine, factory: AdapterFactory, adapter: LocalAdapter
) -> None:
    broken = factory.changed(adapter, lambda _, tensor: tensor * math.nan)
    report = await vllm.probe(broken)
    assert not report.finite
    assert math.isnan(report.max_logprob_delta)
    await vllm.unload(broken)
