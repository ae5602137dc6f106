"""An upstream engine gives what the server itself gives to OpenAI's SDK (`make upstreams`)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from openai import OpenAI

from inference.agent.engines.engine import EngineWork, Meter
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.upstream.engine import UpstreamEngine
from inference.errors import InferenceError, InvalidRequest
from inference.operations.registry import OPERATIONS
from tests.engine.driving import Answer, cut_after, run, written
from tests.labs.upstreams.servers import (
    LLAMA_CPP,
    LLAMA_SERVER,
    MS_SWIFT,
    llama_cpp,
    llama_server,
    ms_swift,
    vllm_serve,
)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not LLAMA_SERVER.exists(), reason="needs `make upstreams`"),
    pytest.mark.asyncio(loop_scope="module"),
]
PYTHON, SWIFT = "llama-cpp-python", "ms-swift"
SERVERS = [
    pytest.param(vllm_serve, id="vLLM"),
    pytest.param(llama_server, id="llama.cpp"),
    pytest.param(
        llama_cpp,
        id=PYTHON,
        marks=pytest.mark.skipif(not LLAMA_CPP.exists(), reason="needs `make upstreams`"),
    ),
    pytest.param(
        ms_swift,
        id=SWIFT,
        marks=pytest.mark.skipif(not MS_SWIFT.exists(), reason="needs `make upstreams`"),
    ),
]
QUESTION: Any = [{"role": "user", "content": "What is the capital of Peru?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "answer", "parameters": SCHEMA}}


@pytest.fixture(scope="module", params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with request.param(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(url: str) -> AsyncIterator[UpstreamEngine]:
    profile = EngineProfile.on_gpu("ours", max_model_len=1024)
    engine = await UpstreamEngine.start(profile, url, "")
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def sdk(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="none", max_retries=0)


async def ask(engine: UpstreamEngine, kind: str = "chat", **body: Any) -> tuple[Answer, list[Any]]:
    """The answer, and what a gateway writes of it to a client."""
    fields = body if "messages" in body or kind != "chat" else {"messages": QUESTION} | body
    operation = OPERATIONS.named(kind)
    answer = await run(engine, EngineWork("r", operation, dict(fields), "ours", "salt"))
    call = operation.parse(json.dumps(fields | {"model": "ours"}).encode())
    return answer, written(call, answer)


async def lacks(engine: UpstreamEngine, field: str, kind: str = "chat", **body: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"`{field}`.*not supported"):
        await ask(engine, kind, **body)


async def test_a_chat_is_what_the_server_says(engine: UpstreamEngine, sdk: OpenAI) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
    direct = sdk.chat.completions.create(model="theirs", messages=QUESTION, **asked)
    whole, (body,) = await ask(engine, **asked)
    streamed, events = await ask(engine, **asked, stream=True)
    text = "".join(
        one["choices"][0]["delta"].get("content") or "" for one in events if one["choices"]
    )
    assert body["choices"][0]["message"]["content"] == direct.choices[0].message.content == text
    assert whole.finish_reason == streamed.finish_reason == direct.choices[0].finish_reason
    assert direct.usage is not None
    for meter in (whole.meter, streamed.meter):
        if engine.info.engine_version != PYTHON:  # which does not say it of a stream
            assert meter.prompt_tokens == direct.usage.prompt_tokens
        ending = meter.completion_tokens - direct.usage.completion_tokens
        if engine.info.engine_version == SWIFT:  # its streams count the token that ends an answer
            assert ending == (direct.choices[0].finish_reason == "stop")
        else:
            assert ending == 0


async def test_the_server_is_recognised(
    engine: UpstreamEngine, request: pytest.FixtureRequest
) -> None:
    assert engine.info.engine_version == request.node.callspec.id


async def test_a_completion_with_log_probabilities(engine: UpstreamEngine, sdk: OpenAI) -> None:
    asked: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}
    if engine.info.engine_version == SWIFT:  # it answers them as chats
        await lacks(engine, "prompt", "completion", **asked)
        return
    direct = sdk.completions.create(model="theirs", **asked)
    _, (body,) = await ask(engine, "completion", **asked)
    assert body["choices"][0]["text"] == direct.choices[0].text


async def test_a_schema_binds(engine: UpstreamEngine) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    if engine.info.engine_version in (PYTHON, SWIFT):  # they have none
        await lacks(engine, "response_format", response_format=form)
        return
    _, (body,) = await ask(engine, response_format=form, max_tokens=60, temperature=0)
    assert json.loads(body["choices"][0]["message"]["content"]).keys() == {"city"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_named_tool_is_called(engine: UpstreamEngine, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "answer"}}
    asked: dict[str, Any] = {
        "tools": [TOOL],
        "tool_choice": named,
        "max_tokens": 60,
        "temperature": 0,
    }
    if engine.info.engine_version == SWIFT:  # its calls are in the text as well, and nothing binds
        with pytest.raises(InvalidRequest, match=r"`tool.*not supported"):
            await ask(engine, **asked, stream=stream)
        return
    answer, told = await ask(engine, **asked, stream=stream)
    if engine.info.engine_version == "llama.cpp" and answer.finish_reason == "length":
        return  # it lets a model talk before a call, but not end without one
    assert '"answer"' in json.dumps(told) and answer.meter.completion_tokens > 0


async def test_the_other_apis(engine: UpstreamEngine, sdk: OpenAI) -> None:
    direct = sdk.chat.completions.create(
        model="theirs", messages=QUESTION, temperature=0, max_tokens=16
    )
    said = direct.choices[0].message.content or ""
    _, (response,) = await ask(
        engine, "responses", input=QUESTION, max_output_tokens=16, temperature=0
    )
    assert response["output"][0]["content"][0]["text"] == said
    _, (message,) = await ask(engine, "messages", messages=QUESTION, max_tokens=16, temperature=0)
    assert message["content"][0]["text"] == said


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 4, "temperature": -1},
        {"messages": [{"role": "user", "content": "word " * 5_000}]},
    ],
)
async def test_what_the_server_refuses(engine: UpstreamEngine, body: dict[str, Any]) -> None:
    if engine.info.engine_version == SWIFT and "temperature" in body:
        return  # it would hang: the engine does not send it
    with pytest.raises(InferenceError) as refused:
        await ask(engine, **body)
    # These two begin to answer, and then break off.
    begins = engine.info.engine_version in (PYTHON, SWIFT)
    assert refused.value.http_status == 400 or begins, refused.value


async def test_who_leaves_is_billed_for_what_came(engine: UpstreamEngine) -> None:
    work = EngineWork(
        "r", OPERATIONS.named("chat"), {"messages": QUESTION, "stream": True, "max_tokens": 500},
        "ours", "salt", meter=Meter(),
    )  # fmt: skip
    await cut_after(engine, work, 3)
    assert 0 < work.meter.completion_tokens < 100 and work.meter.prompt_tokens > 0
    assert engine.stats().running == 0
