"""The contract of all engines; each test runs on the synthetic engine and on vLLM, and what is
promised of adapters on an upstream engine too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from inference.agent.engines.cache_news import Stored
from inference.agent.engines.engine import Engine, EngineOutput, LocalAdapter, Meter
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.revision import revision_of
from inference.errors import AdapterLoadFailed, ContextLengthExceeded, InvalidRequest
from inference.link.accounts import Usage
from inference.link.wire import Resume
from inference.operations.registry import OPERATIONS
from tests.engine.conftest import MAX_LOADED
from tests.engine.driving import (
    CREATED,
    QUESTION,
    Answer,
    ask,
    assert_same,
    cut_after,
    goes_on,
    run,
    running_after_a_step,
    work_of,
)
from tests.engine.factory import MAX_MODEL_LEN, TARGETS, AdapterFactory

pytestmark = pytest.mark.asyncio(loop_scope="session")

UPSTREAM_TOO = pytest.mark.parametrize(
    "engine", ["synthetic", pytest.param("vllm", marks=pytest.mark.vllm), "upstream"], indirect=True
)

LONG = [{"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 12}]


@pytest.fixture(scope="module")
def adapter(factory: AdapterFactory) -> LocalAdapter:
    return factory.make(seed=1)


@pytest_asyncio.fixture(loop_scope="session")
async def loaded(engine: Engine, adapter: LocalAdapter) -> AsyncIterator[LocalAdapter]:
    await engine.load(adapter)
    yield adapter
    await engine.unload(adapter)


async def test_it_says_what_it_serves(engine: Engine) -> None:
    info = engine.info
    assert info.name == "tiny"
    assert info.max_model_len == MAX_MODEL_LEN
    assert info.kv_tokens > MAX_MODEL_LEN
    assert engine.alive
    assert {name.rpartition(".")[2] for name in info.modules} == set(TARGETS)
    assert info.modules["model.layers.2.mlp.down_proj"] == (128, 256)
    assert info.modules["model.layers.0.self_attn.k_proj"] == (64, 128)


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_a_stream_brings_each_token_and_ends_with_the_reason(
    engine: Engine, kind: Any
) -> None:
    answer = await ask(engine, kind, stream=True)
    *before, _last = [output.finish_reason for output in answer.outputs]
    assert not any(before)
    assert answer.finish_reason == "length"
    assert answer.tokens == answer.meter.completion_tokens == 8
    assert answer.meter.prompt_tokens > 0


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_without_streaming_the_text_is_the_same(engine: Engine, kind: Any) -> None:
    streamed, whole = await ask(engine, kind, stream=True), await ask(engine, kind)
    assert whole.text == streamed.text
    assert len(whole.outputs) <= 2, "the first token, then the rest"
    assert (whole.tokens, whole.finish_reason) == (8, "length")
    assert whole.meter == replace(streamed.meter, cached_tokens=whole.meter.cached_tokens)


@pytest.mark.parametrize("body", [{}, {"n": 2, "temperature": 1.0}], ids=["lean", "full"])
async def test_it_says_what_its_prefix_cache_holds_for_whom(
    engine: Engine, body: dict[str, Any]
) -> None:
    """It reports all of the prompt's blocks in the cache, whether they are new or not."""
    salt = f"salt-{body}"
    held = []
    for _ in range(2):
        engine.cache_news()
        answer = await ask(engine, salt=salt, messages=LONG, **body)
        news = [*(engine.cache_news() or ())]
        while not any(isinstance(one, Stored) for one in news):
            await ask(engine, max_tokens=1, salt=salt)  # news are reported between two steps
            news += engine.cache_news() or ()
        stored = [one for one in news if isinstance(one, Stored) and one.key == answer.work.key]
        assert stored[0].parent is None
        held.append(stored[0].blocks)
        assert len(held[-1]) * stored[0].block_tokens <= answer.meter.prompt_tokens
        assert len(held[-1]) * stored[0].block_tokens >= answer.meter.cached_tokens
    assert answer.meter.cached_tokens > 0
    common = min(map(len, held))
    assert common and held[0][:common] == held[1][:common]


@pytest.mark.parametrize("stream", [False, True])
async def test_messages_are_a_chat_written_in_another_way(engine: Engine, stream: bool) -> None:
    given: dict[str, Any] = {"stream": stream, "max_tokens": 5, "ignore_eos": False}
    system = {"role": "system", "content": "Be brief."}
    chat = await ask(engine, messages=[system, *QUESTION], **given)
    blocks = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    for turns in (QUESTION, blocks):
        same = await ask(engine, "messages", system="Be brief.", messages=turns, **given)
        assert (same.text, same.tokens) == (chat.text, chat.tokens)
        assert same.finish_reason == chat.finish_reason
        assert same.meter.prompt_tokens == chat.meter.prompt_tokens


async def told(engine: Engine, kind: str, **body: Any) -> dict[str, Any]:
    """The answer to a request that generates nothing; checks that it costs nothing."""
    work = replace(work_of(kind), body={"temperature": 0} | body)
    before = engine.stats()
    answer = await run(engine, work)
    assert answer.meter == Meter()
    assert engine.stats().completion_tokens == before.completion_tokens
    assert answer.finish_reason == "stop"
    return answer.response


async def test_a_prompt_is_told_as_the_tokens_that_it_has(engine: Engine) -> None:
    chat = await ask(engine)
    made = await told(engine, "tokenize", messages=QUESTION)
    assert made["count"] == len(made["tokens"]) == chat.meter.prompt_tokens
    assert made["max_model_len"] == MAX_MODEL_LEN
    assert made["token_strs"] is None
    assert await told(engine, "count_tokens", messages=QUESTION) == {"input_tokens": made["count"]}
    counted = await told(engine, "input_tokens", input=QUESTION)
    assert counted == {"object": "response.input_tokens", "input_tokens": made["count"]}
    whole = await told(engine, "count_tokens", messages=QUESTION, system="Be brief.")
    assert whole["input_tokens"] > made["count"]


async def test_tokens_are_told_as_text(engine: Engine) -> None:
    text = "The quick brown fox"
    made = await told(engine, "tokenize", prompt=text, return_token_strs=True)
    assert len(made["token_strs"]) == made["count"]
    assert text in (await told(engine, "detokenize", tokens=made["tokens"]))["prompt"]
    assert (await told(engine, "detokenize", tokens=[]))["prompt"] == ""
    for wrong in ([10**12], [2**70], ["x"], "x"):
        with pytest.raises(InvalidRequest) as caught:
            await told(engine, "detokenize", tokens=wrong)
        assert caught.value.param == "tokens"


async def test_a_text_longer_than_the_context_can_be_tokenized(engine: Engine) -> None:
    made = await told(engine, "tokenize", prompt="The quick brown fox. " * 1000)
    assert made["count"] > MAX_MODEL_LEN
    counted = await told(engine, "input_tokens", input="The quick brown fox. " * 1000)
    assert counted["input_tokens"] >= made["count"]


async def test_a_prompt_may_be_token_ids(engine: Engine) -> None:
    answer = await ask(engine, "completion", prompt=[20, 30, 40])
    assert answer.meter.prompt_tokens == 3
    assert answer.tokens == 8


async def test_max_completion_tokens_goes_before_max_tokens(engine: Engine) -> None:
    answer = await ask(engine, max_tokens=7, max_completion_tokens=3)
    assert (answer.tokens, answer.finish_reason) == (3, "length")


async def test_it_ends_before_a_stop_string(engine: Engine) -> None:
    text = (await ask(engine, max_tokens=24)).text
    stop = text[6:9]
    stopped = await ask(engine, max_tokens=24, stop=[stop], stream=True)
    assert stopped.finish_reason == "stop"
    assert stopped.text == text[: text.index(stop)]
    assert stopped.tokens == stopped.meter.completion_tokens


async def test_several_choices_stream_as_whole_chunks(engine: Engine) -> None:
    answer = await ask(engine, n=2, stream=True, temperature=1.0, seed=3)
    assert answer.text == ""
    assert {choice["index"] for chunk in answer.chunks for choice in chunk["choices"]} == {0, 1}
    for chunk in answer.chunks:
        assert chunk["id"] == f"chatcmpl-{answer.work.id}"
        assert (chunk["created"], chunk["model"]) == (CREATED, "shown-name")
        assert "usage" not in chunk
    assert answer.tokens == answer.meter.completion_tokens == 16
    assert answer.finish_reason == "length"


@pytest.mark.parametrize(("kind", "prefix"), [("chat", "chatcmpl"), ("completion", "cmpl")])
async def test_several_choices_come_as_one_response(engine: Engine, kind: Any, prefix: str) -> None:
    answer = await ask(engine, kind, n=2, temperature=1.0, seed=3)
    body = answer.response
    assert body["id"] == f"{prefix}-{answer.work.id}"
    assert (body["created"], body["model"]) == (CREATED, "shown-name")
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["prompt_tokens"] == answer.meter.prompt_tokens
    assert body["usage"]["completion_tokens"] == answer.meter.completion_tokens == 16
    assert answer.tokens == 16


@pytest.mark.parametrize("body", [{}, {"n": 2, "temperature": 1.0}], ids=["lean", "full"])
@pytest.mark.parametrize("stream", [True, False])
async def test_closing_the_iterator_aborts_in_the_engine(
    engine: Engine, body: dict[str, Any], stream: bool
) -> None:
    work = work_of(max_tokens=400, stream=stream, **body)
    task = asyncio.create_task(run(engine, work))
    while work.meter.completion_tokens < 5:
        await ask(engine, max_tokens=1)  # makes the engine take a step
    assert engine.stats().running >= 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    counted = replace(work.meter)
    assert await running_after_a_step(engine) == 0
    assert work.meter == counted
    assert counted.prompt_tokens > 0
    assert 5 <= counted.completion_tokens < 400 * body.get("n", 1)


@pytest.mark.parametrize(("stream", "tokens"), [(True, 5), (False, 1)])
@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_an_aborted_request_costs_what_was_generated(
    engine: Engine, kind: Any, stream: bool, tokens: int
) -> None:
    """Output arrives in parts: of a stream continually, of a whole answer at its first token."""
    before = engine.stats().completion_tokens
    answer = await cut_after(engine, work_of(kind, max_tokens=400, stream=stream), tokens)
    assert answer.finish_reason is None
    assert tokens <= answer.tokens == answer.meter.completion_tokens < 400
    assert engine.stats().completion_tokens - before == answer.meter.completion_tokens
    assert await running_after_a_step(engine) == 0


async def test_running_requests_are_seen(engine: Engine) -> None:
    async with aclosing(engine.generate(work_of(max_tokens=400, stream=True))) as outputs:
        await anext(outputs)
        await anext(outputs)
        assert engine.stats().running == 1


def wrong_bodies() -> Iterator[Any]:
    image = [{"type": "image_url", "image_url": {"url": "http://localhost/x.png"}}]
    for field, value, param in [
        ("messages", None, "messages"),
        ("messages", [], "messages"),
        ("messages", "hello", "messages"),
        ("messages", ["hello"], "messages[0]"),
        ("messages", [{"content": "hello"}], "messages[0]"),
        ("messages", [{"role": "user", "content": 7}], "messages[0].content"),
        ("messages", [{"role": "user", "content": image}], "messages[0].content"),
        ("temperature", "hot", "temperature"),
        ("max_tokens", "many", "max_tokens"),
        ("max_tokens", 0, "max_tokens"),
        ("n", "two", "n"),
        ("stop", {"a": 1}, "stop"),
        ("stream", "perhaps", "stream"),
        ("functions", [{"name": "f"}], "functions"),
        ("best_of", 2, "best_of"),
        ("modalities", ["text", "audio"], "modalities"),
        ("use_beam_search", True, "use_beam_search"),
    ]:
        yield pytest.param({field: value}, param, id=f"{field}={value!r}"[:40])


@pytest.mark.parametrize(("body", "param"), [*wrong_bodies()])
async def test_a_wrong_field_is_named(
    engine: Engine, body: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await ask(engine, **body)
    assert caught.value.param == param
    assert (param or "values").split("[")[0] in caught.value.message
    assert "\n" not in caught.value.message


async def test_parameters_with_neutral_values_are_ignored(engine: Engine) -> None:
    harmless: dict[str, Any] = {
        "best_of": 1,
        "modalities": ["text"],
        "functions": None,
        "use_beam_search": False,
    }
    assert (await ask(engine, **harmless)).tokens > 0


@pytest.mark.parametrize("prompt", [None, "", [], 7, [-1] * 400_000, [[1], "a"], [1, None], [True]])
async def test_a_completion_needs_a_prompt(engine: Engine, prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await ask(engine, "completion", prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_a_prompt_longer_than_the_context(engine: Engine, kind: Any) -> None:
    text = "quick brown fox " * MAX_MODEL_LEN
    body = {"messages": [{"role": "user", "content": text}], "prompt": text}
    with pytest.raises(ContextLengthExceeded, match=str(MAX_MODEL_LEN)):
        await ask(engine, kind, **body)


async def test_fields_that_are_not_the_clients_are_ignored(engine: Engine) -> None:
    plain = await ask(engine)
    foreign = await ask(
        engine,
        unheard_of={"a": 1},
        user="somebody",
        cache_salt=7,
        priority="high",
        request_id=["x"],
        session_id=1,
        kv_transfer_params=1,
        ec_transfer_params=1,
        chat_template_kwargs={"chat_template": "{{ 1 / 0 }}", "tokenize": True},
        stream_options=7,
        model=7,
    )
    assert foreign.text == plain.text


async def test_a_prefix_is_cached_for_its_salt_alone(engine: Engine) -> None:
    first = await ask(engine, salt="red", messages=LONG)
    again = await ask(engine, salt="red", messages=LONG)
    other = await ask(engine, salt="blue", messages=LONG)
    assert first.meter.cached_tokens == other.meter.cached_tokens == 0
    assert 0 < again.meter.cached_tokens < again.meter.prompt_tokens
    assert again.text == first.text == other.text


async def test_a_client_cannot_choose_its_salt(engine: Engine) -> None:
    await ask(engine, salt="green", messages=LONG)
    thief = await ask(engine, salt="violet", messages=LONG, cache_salt="green")
    assert thief.meter.cached_tokens == 0


@UPSTREAM_TOO
async def test_the_cache_is_the_adapters_own(engine: Engine, loaded: LocalAdapter) -> None:
    await ask(engine, salt="yellow", messages=LONG)
    adapted = await ask(engine, salt="yellow", messages=LONG, adapter=loaded)
    assert adapted.meter.cached_tokens == 0


@UPSTREAM_TOO
async def test_an_adapter_changes_the_answer(engine: Engine, loaded: LocalAdapter) -> None:
    assert (await ask(engine, adapter=loaded)).said != (await ask(engine)).said


@UPSTREAM_TOO
async def test_an_adapter_can_be_loaded_and_unloaded_repeatedly(
    engine: Engine, adapter: LocalAdapter
) -> None:
    first = await engine.load(adapter)
    assert first.weight_bytes > 0
    assert (await engine.load(adapter)).weight_bytes == first.weight_bytes
    answer = await ask(engine, adapter=adapter)
    await engine.unload(adapter)
    await engine.unload(adapter)
    with pytest.raises(AdapterLoadFailed):
        await ask(engine, adapter=adapter)
    await engine.load(adapter)
    assert (await ask(engine, adapter=adapter)).said == answer.said
    await engine.unload(adapter)


@UPSTREAM_TOO
async def test_an_adapter_without_files_fails_alone(
    engine: Engine, adapter: LocalAdapter, tmp_path: Path
) -> None:
    missing = replace(adapter, int_id=10_000, path=tmp_path / "nothing")
    with pytest.raises(AdapterLoadFailed, match=adapter.ref.name):
        await engine.load(missing)
    with pytest.raises(AdapterLoadFailed):
        await ask(engine, adapter=missing)
    assert (await ask(engine)).tokens == 8
    assert engine.alive


@UPSTREAM_TOO
async def test_no_more_adapters_are_loaded_than_the_maximum(
    engine: Engine, factory: AdapterFactory
) -> None:
    adapters = [factory.make(seed=seed) for seed in range(20, 21 + MAX_LOADED)]
    for adapter in adapters[:MAX_LOADED]:
        await engine.load(adapter)
    with pytest.raises(AdapterLoadFailed, match="can load no more"):
        await engine.load(adapters[MAX_LOADED])
    texts = {(await ask(engine, adapter=adapter)).said for adapter in adapters[:MAX_LOADED]}
    assert len(texts) == MAX_LOADED, "each loaded adapter answers as itself"
    for adapter in adapters:
        await engine.unload(adapter)


@UPSTREAM_TOO
async def test_a_probe_sees_a_working_adapter(engine: Engine, adapter: LocalAdapter) -> None:
    report = await engine.probe(adapter)
    assert report.finite
    assert report.max_logprob_delta > 0.01
    assert report.weight_bytes > 0
    assert report.base_text != report.adapter_text
    await engine.unload(adapter)


async def test_the_totals_are_the_sum_of_the_meters(engine: Engine) -> None:
    before = engine.stats()
    answers = await asyncio.gather(*(ask(engine, messages=LONG) for _ in range(4)))
    after = engine.stats()
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        counted = sum(getattr(answer.meter, name) for answer in answers)
        assert getattr(after, name) - getattr(before, name) == counted


async def test_two_messages_are_told_apart_by_their_answers(engine: Engine) -> None:
    other = [{"role": "user", "content": "Count from one to five."}]
    one, two = await asyncio.gather(ask(engine, messages=QUESTION), ask(engine, messages=other))
    assert one.text != two.text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_an_answer_has_its_token_ids_by_choice_if_they_are_wanted(
    engine: Engine, kind: str, n: int, stream: bool
) -> None:
    almost_greedy = {"temperature": 0.01, "seed": 1, "n": n}
    answer = await ask(engine, kind, stream=stream, wants_ids=True, **almost_greedy)
    assert {choice: len(ids) for choice, ids in answer.ids.items()} == dict.fromkeys(range(n), 8)
    again = await ask(engine, kind, stream=not stream, wants_ids=True, **almost_greedy)
    assert again.ids == answer.ids
    plain = await ask(engine, kind, stream=stream, **almost_greedy)
    assert plain.ids == {}


async def test_two_attempts_of_a_request_run_at_once(engine: Engine) -> None:
    first = work_of(stream=True)
    second = replace(first, attempt=2, meter=Meter())
    answers = await asyncio.gather(run(engine, first), run(engine, second))
    assert answers[0].text == answers[1].text
    assert [answer.meter.completion_tokens for answer in answers] == [8, 8]


async def test_an_engine_says_what_it_serves(engine: Engine, profile: EngineProfile) -> None:
    folder = Path(profile.model)
    assert engine.info.revision == revision_of(folder, folder)
    generating = {one.name for one in OPERATIONS if not one.pools}
    assert generating <= set(engine.info.operations) <= {one.name for one in OPERATIONS}
    assert engine.info.engine_version


def cuts(whole: Answer) -> list[int]:
    """Outputs after which the engine is lost: early, late, and just before the end."""
    outputs = len(whole.outputs)
    return sorted({1, 2, outputs // 2, outputs - 2, outputs - 1} & set(range(1, outputs)))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_an_engine_continues_where_another_stopped(
    engine: Engine, kind: str, n: int, stream: bool
) -> None:
    given: dict[str, Any] = {"n": n, "stream": stream, "max_tokens": 70}
    given |= {"temperature": 1.0, "seed": 4}
    whole = await ask(engine, kind, wants_ids=True, **given)
    before = engine.stats()
    moves = [await goes_on(engine, whole, cut, kind, **given) for cut in cuts(whole)]
    for moved in moves:
        assert_same(moved, whole)
    after = engine.stats()
    new = [moved.meter.completion_tokens - tokens_before(moved) for moved in moves]
    assert after.completion_tokens - before.completion_tokens == sum(new)
    assert after.prompt_tokens == before.prompt_tokens, "it was paid for"


def tokens_before(moved: Answer) -> int:
    assert moved.work.resume is not None
    return sum(map(len, moved.work.resume.ids.values()))


async def test_resuming_a_complete_answer_only_returns_the_finish_reason(
    engine: Engine,
) -> None:
    for given in ({"max_tokens": 9}, {"max_tokens": 9, "n": 2, "temperature": 1.0, "seed": 1}):
        whole = await ask(engine, stream=True, wants_ids=True, **given)
        moved = await goes_on(engine, whole, len(whole.outputs), stream=True, **given)
        assert_same(replace(moved, outputs=moved.outputs[: len(whole.outputs)]), whole)
        (word,) = moved.outputs[len(whole.outputs) :]
        assert word == EngineOutput(finish_reason="length")


async def test_a_resumed_answer_ends_before_its_stop_string(engine: Engine) -> None:
    text = (await ask(engine, max_tokens=24)).text
    given: dict[str, Any] = {"stop": [text[15:25]], "max_tokens": 24, "stream": True}
    whole = await ask(engine, wants_ids=True, **given)
    assert whole.finish_reason == "stop"
    for cut in range(1, len(whole.outputs) + 1):
        moved = await goes_on(engine, whole, cut, **given)
        assert moved.text == whole.text == text[: text.index(given["stop"][0])]
        assert moved.ids == whole.ids
        assert moved.finish_reason == "stop"


async def test_an_answer_of_an_adapter_can_be_resumed(engine: Engine, loaded: LocalAdapter) -> None:
    given: dict[str, Any] = {"adapter": loaded, "stream": True, "max_tokens": 30}
    whole = await ask(engine, wants_ids=True, **given)
    for cut in cuts(whole):
        assert_same(await goes_on(engine, whole, cut, **given), whole)


async def test_a_whole_answer_reports_token_ids_as_it_is_generated(engine: Engine) -> None:
    for n in (1, 2):
        answer = await ask(engine, wants_ids=True, n=n, temperature=1.0, max_tokens=120)
        pieces = [sum(map(len, output.ids.values())) for output in answer.outputs]
        assert sum(pieces) == 120 * n
        assert len(pieces) > 1, "how long one is depends on who reads"


async def test_closing_the_iterator_of_a_resumed_request_aborts_it(engine: Engine) -> None:
    given: dict[str, Any] = {"stream": True, "max_tokens": 400, "n": 2, "temperature": 1.0}
    whole = await cut_after(engine, work_of(wants_ids=True, **given), 20)
    usage = Usage(whole.meter.prompt_tokens, 0, 20)
    meter = Meter(whole.meter.prompt_tokens, 0, 20)
    work = replace(
        work_of(wants_ids=True, **given), meter=meter, resume=Resume(whole.ids, {}, usage)
    )
    await cut_after(engine, work, 40)
    assert await running_after_a_step(engine) == 0
