"""Another server as an engine: what real servers send, word for word, and what broken ones do."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inference.agent.__main__ import parser, profile_of, start_engine
from inference.agent.engines.engine import EngineNotStarted, EngineWork, Meter
from inference.agent.engines.profile import BadProfile, EngineProfile
from inference.agent.engines.upstream import connection
from inference.agent.engines.upstream.connection import MAX_KEY, KeyFile
from inference.agent.engines.upstream.dialects import DIALECTS, Dialect, dialect_of
from inference.agent.engines.upstream.engine import UpstreamEngine
from inference.agent.engines.upstream.reading import MAX_EVENT, EventStream
from inference.errors import (
    AdapterLoadFailed,
    ContextLengthExceeded,
    EngineFailed,
    InvalidRequest,
    Overloaded,
)
from inference.link.wire import Resume
from inference.operations.registry import OPERATIONS
from tests.engine.driving import Answer, ask, cut_after, run, work_of, written
from tests.inference.rig import chat, rig

CARD = {"id": "upstream/model", "object": "model", "owned_by": "vllm", "max_model_len": 512}
END = "data: [DONE]\n\n"


def events(*chunks: dict[str, Any]) -> str:
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + END


def choice(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


SAID = events(
    choice({"role": "assistant", "content": ""}),
    choice({"content": "Good"}),
    choice({"content": " day"}, "stop"),
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}},
)


@dataclass
class Server:
    """Answers each request with `answer`, and keeps what it was sent."""

    answer: str = SAID
    status: int = 200
    card: dict[str, Any] = field(default_factory=lambda: dict(CARD))
    listed: str = ""
    """The answer to `GET models` instead of the card."""
    breaks: bool = False
    """It leaves without ending its answer."""
    holds: bool = False
    """It sends the answer and nothing further, until the client leaves."""
    keeps: bool = False
    """It waits for another request on the connection."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    heads: list[str] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._serve(reader, writer)
            while self.keeps:
                await self._serve(reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        if head.startswith("GET"):
            listed = self.listed or json.dumps({"object": "list", "data": [self.card]})
            await self._send(writer, listed, whole=True)
            return
        length = int(head.lower().partition("content-length: ")[2].partition("\r")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        await self._send(writer, self.answer, whole=not (self.breaks or self.holds))
        if self.holds:
            await reader.read()
            self.left.set()

    async def _send(self, writer: asyncio.StreamWriter, text: str, *, whole: bool) -> None:
        length = len(text.encode()) + (0 if whole else 1)
        head = f"HTTP/1.1 {self.status} OK\r\nContent-Length: {length}\r\n"
        head += "\r\n" if self.keeps else "Connection: close\r\n\r\n"
        writer.write(head.encode() + text.encode())
        await writer.drain()

    async def engine(self, key: str | KeyFile = "", **options: Any) -> UpstreamEngine:
        profile = EngineProfile.on_gpu("org/shown", **options.pop("profile", {}))
        return await UpstreamEngine.start(profile, self.url, key, **options)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    yield server
    listening.close()


@asynccontextmanager
async def started(server: Server, **options: Any) -> AsyncIterator[UpstreamEngine]:
    engine = await server.engine(**options)
    yield engine
    await engine.close()


async def said(server: Server, kind: str = "chat", **body: Any) -> Answer:
    async with started(server) as engine:
        return await ask(engine, kind, **body)


async def test_an_answer_is_the_servers_under_our_names(server: Server) -> None:
    async with started(server, key="secret") as engine:
        streamed, whole = await ask(engine, stream=True), await ask(engine)
        assert engine.stats().completion_tokens == 6
    assert all("Authorization: Bearer secret" in head for head in server.heads)
    assert server.bodies[0] == server.bodies[1] | {"cache_salt": "salt-of-acme"}
    sent = server.bodies[0]
    assert sent["model"] == "upstream/model" and sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    for answer in (streamed, whole):
        assert answer.tokens == 3 and answer.meter == Meter(9, 0, 3)
        assert answer.finish_reason == "stop"
        call = answer.work.operation.parse(
            json.dumps(work_of(stream=answer is streamed).body | {"model": "shown-name"}).encode()
        )
        assert written(call, answer)
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in streamed.chunks) == (
        "Good day"
    )
    assert whole.response["choices"][0]["message"]["content"] == "Good day"
    assert whole.response["model"] == "shown-name"
    assert whole.response["usage"]["total_tokens"] == 12


AZURE = events(
    {"choices": [], "created": 0, "id": "", "model": "", "object": "",
     "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]},
    {"choices": [{"content_filter_results": {}, "delta": {"content": "", "refusal": None,
                  "role": "assistant"}, "finish_reason": None, "index": 0, "logprobs": None}],
     "obfuscation": "x", "system_fingerprint": "fp_1", "usage": None},
    {"choices": [{"content_filter_results": {}, "delta": {"content": "Lima"},
                  "finish_reason": None, "index": 0, "logprobs": None}], "usage": None},
    {"choices": [{"delta": {}, "finish_reason": "stop", "index": 0, "logprobs": None}]},
    {"choices": [], "usage": {"prompt_tokens": 14, "completion_tokens": 2, "total_tokens": 16,
     "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
     "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 8}}},
)  # fmt: skip
LLAMA_CPP = events(
    {"choices": [{"finish_reason": None, "index": 0,
                  "delta": {"role": "assistant", "content": None}}]},
    {"choices": [{"finish_reason": None, "index": 0, "delta": {"content": "Li"}}]},
    {"choices": [{"finish_reason": None, "index": 0, "delta": {"content": "ma"}}]},
    {"choices": [{"finish_reason": "stop", "index": 0, "delta": {}}]},
    {"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 14, "total_tokens": 16,
     "prompt_tokens_details": {"cached_tokens": 8}}, "timings": {"cache_n": 8, "prompt_n": 6}},
)  # fmt: skip
OLLAMA = events(
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Li"},
                  "finish_reason": None}], "system_fingerprint": "fp_ollama"},
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "ma"},
                  "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""},
                  "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 14, "completion_tokens": 2, "total_tokens": 16}},
)  # fmt: skip
# Recorded from Amazon's service: each piece of reasoning is in tags.
BEDROCK = events(
    {"choices": [{"delta": {"role": "assistant"}, "index": 0}], "created": 1758101530,
     "model": "openai.gpt-oss-120b-1:0", "service_tier": "standard"},
    {"choices": [{"delta": {"content": "<reasoning>The capital</reasoning>"}, "index": 0}]},
    {"choices": [{"delta": {"content": "<reasoning> of Peru.</reasoning>"}, "index": 0}]},
    {"choices": [{"delta": {"content": "Lima"}, "index": 0}]},
    {"choices": [{"delta": {}, "finish_reason": "stop", "index": 0}]},
    {"choices": [], "usage": {"prompt_tokens": 14, "completion_tokens": 8, "total_tokens": 22}},
)  # fmt: skip
# Recorded from Google's: usage in each chunk, and reasoning only in its total and its details.
VERTEX = events(
    {"choices": [{"delta": {"content": "Li", "role": "assistant"}, "index": 0}],
     "usage": {"prompt_tokens": 14, "completion_tokens": 1, "total_tokens": 21,
               "completion_tokens_details": {"reasoning_tokens": 6}}},
    {"choices": [{"delta": {"content": "ma", "role": "assistant"}, "finish_reason": "stop",
                  "index": 0}],
     "usage": {"prompt_tokens": 14, "completion_tokens": 2, "total_tokens": 22,
               "completion_tokens_details": {"reasoning_tokens": 6},
               "extra_properties": {"google": {"traffic_type": "ON_DEMAND"}}}},
)  # fmt: skip
OPENROUTER = ": OPENROUTER PROCESSING\n\n" + OLLAMA.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("answer", "cached"),
    [(AZURE, 8), (LLAMA_CPP, 8), (OLLAMA, 0), (OPENROUTER, 0)],
    ids=["azure", "llama.cpp", "ollama", "openrouter"],
)
async def test_dialects_are_understood(server: Server, answer: str, cached: int) -> None:
    server.answer = answer
    streamed = await said(server, stream=True)
    deltas = [one["choices"][0]["delta"] for one in streamed.chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Lima"
    assert [i for i, delta in enumerate(deltas) if "role" in delta] == [0]
    assert streamed.meter == Meter(14, cached, 2) and streamed.tokens == 2
    assert set().union(*streamed.chunks) == {"id", "object", "created", "model", "choices"}


async def test_reasoning_of_bedrock_is_taken_out_of_its_tags(server: Server) -> None:
    server.answer, server.card = BEDROCK, {"id": "gpt-oss"}
    options: dict[str, Any] = {"profile": {"max_model_len": 4096}, "dialect": "amazon-bedrock"}
    async with started(server, **options) as engine:
        answer = await ask(engine, ignore_eos=False)
    assert server.bodies[0]["max_completion_tokens"] == 8 and "max_tokens" not in server.bodies[0]
    (said,) = answer.response["choices"]
    assert said["message"]["reasoning"] == "The capital of Peru."
    assert said["message"]["content"] == "Lima"
    assert answer.meter == Meter(14, 0, 8)


@pytest.mark.parametrize("details", [True, False], ids=["Vertex AI", "Gemini"])
async def test_reasoning_that_is_in_the_total_alone_is_counted(
    server: Server, details: bool
) -> None:
    server.answer = VERTEX if details else VERTEX.replace("completion_tokens_details", "left_out")
    answer = await said(server)
    assert answer.response["choices"][0]["message"]["content"] == "Lima"
    assert answer.meter == Meter(14, 0, 8, 6) and answer.tokens == 8


async def test_a_service_needs_no_list_of_models(server: Server) -> None:
    server.status = 404
    with pytest.raises(EngineNotStarted, match="without a list, set --upstream-model"):
        await server.engine()
    async with started(server, model="google/gemma", profile={"max_model_len": 4096}) as engine:
        server.status = 200
        await ask(engine, ignore_eos=False)
    assert server.bodies[0]["model"] == "google/gemma"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("acme.openai.azure.com", "Azure OpenAI"),
        ("bedrock-runtime.eu-central-1.amazonaws.com", "Amazon Bedrock"),
        ("europe-west1-aiplatform.googleapis.com", "Vertex AI"),
        ("aiplatform.googleapis.com.example.org", "vLLM"),
    ],
)
def test_services_are_known_by_their_hosts(host: str, name: str) -> None:
    assert dialect_of(f"https://{host}/openai/v1", {"owned_by": "vllm"}).name == name


async def test_a_key_in_a_file_is_read_again_when_it_changes(
    server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "key"

    def write(key: str, at: int) -> None:
        file.write_text(key)
        os.utime(file, ns=(at, at))

    with pytest.raises(EngineNotStarted, match="can't be read: No such file"):
        KeyFile(file)
    write("\n", 1)
    with pytest.raises(EngineNotStarted, match="holds no key"):
        KeyFile(file)
    write("first\n", 2)
    async with started(server, key=KeyFile(file)) as engine:
        await ask(engine)
        write("second\n", 3)
        await ask(engine)
        write("x" * (MAX_KEY + 1), 4)
        await ask(engine)
        file.unlink()
        await ask(engine)
    keys = [head.partition("Authorization: Bearer ")[2].split()[0] for head in server.heads[1:]]
    assert keys == ["first", "second", "second", "second"]


def embedded(*vectors: list[float], **more: Any) -> str:
    """What a server answers; some do not keep the order."""
    data = [
        {"object": "embedding", "index": place, "embedding": vector}
        for place, vector in enumerate(vectors)
    ]
    usage = {"usage": {"prompt_tokens": 7, "total_tokens": 7}} | more
    return json.dumps({"object": "list", "data": data[::-1], "model": "upstream/model"} | usage)


def embeds(given: Any = ("one", "two"), **body: Any) -> EngineWork:
    given = list(given) if isinstance(given, tuple) else given
    operation = OPERATIONS.named("embeddings")
    return EngineWork("e1", operation, {"input": given} | body, "shown-name", "salt-of-acme")


@asynccontextmanager
async def pooling(server: Server, **options: Any) -> AsyncIterator[UpstreamEngine]:
    async with started(server, profile={"runner": "pooling"}, **options) as engine:
        yield engine


async def test_embeddings_are_the_servers_in_the_form_that_is_asked(server: Server) -> None:
    server.answer = embedded([0.5, -1.0], [0.25, 2.0])
    async with pooling(server) as engine:
        assert engine.info.operations == ["embeddings"]
        answer = await run(engine, embeds(dimensions=2))
        packed = await run(engine, embeds(encoding_format="base64"))
        assert engine.stats().prompt_tokens == 14
        with pytest.raises(InvalidRequest, match="does not support this operation"):
            await ask(engine)
    assert server.bodies[0] == {
        "input": ["one", "two"], "dimensions": 2, "model": "upstream/model",
        "cache_salt": "salt-of-acme",
    }  # fmt: skip
    assert "encoding_format" not in server.bodies[1]
    assert [one["embedding"] for one in answer.response["data"]] == [[0.5, -1.0], [0.25, 2.0]]
    assert answer.response["model"] == "shown-name" and answer.meter == Meter(7)
    first = base64.b64decode(packed.response["data"][0]["embedding"])
    assert struct.unpack("<2f", first) == (0.5, -1.0)


async def test_tokens_of_embeddings_are_estimated_if_the_server_does_not_say(
    server: Server,
) -> None:
    server.answer = embedded([1.0], usage=None)
    async with pooling(server) as engine:
        answer = await run(engine, embeds("x" * 400))
    assert answer.meter.is_estimated and 100 < answer.meter.prompt_tokens < 140


@pytest.mark.parametrize(
    "answer",
    [
        embedded([1.0]),
        embedded([1.0], []),
        embedded([1.0], [float("1e39")]),
        embedded([1.0], [2.0])[:-20],
        '{"data": "AAAA"}',
        "[" * 5_000,
    ],
    ids=["too few", "empty", "too large a number", "cut", "no list", "deep"],
)
async def test_what_are_no_embeddings_fails_that_request_alone(server: Server, answer: str) -> None:
    server.answer = answer
    async with pooling(server) as engine:
        with pytest.raises(EngineFailed):
            await run(engine, embeds())
        server.answer = embedded([1.0], [2.0])
        assert (await run(engine, embeds())).finish_reason == "stop"


async def test_more_numbers_than_can_be_sent_are_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.operations.pooling.pooling.MAX_ANSWER_BYTES", 10)
    server.answer = embedded([1.0], [2.0])
    async with pooling(server) as engine:
        with pytest.raises(InvalidRequest, match="send fewer inputs"):
            await run(engine, embeds())


async def test_a_server_without_a_field_of_embeddings_is_named(server: Server) -> None:
    async with pooling(server, dialect="ollama") as engine:
        with pytest.raises(InvalidRequest, match=r"`truncate_prompt_tokens` is not .* by Ollama"):
            await run(engine, embeds(truncate_prompt_tokens=4))
    assert not server.bodies


async def test_tool_calls_and_reasoning_are_clients_own(server: Server) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    server.answer = events(
        choice({"role": "assistant", "reasoning_content": "Hm."}),
        choice({"tool_calls": [call]}),  # some leave out the index
        choice({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}),
        choice({}, "tool_calls"),
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    answer = await said(server, tools=tools)
    message = answer.response["choices"][0]["message"]
    assert message["reasoning"] == "Hm." and message["content"] is None
    assert message["tool_calls"] == [call | {"function": {"name": "f", "arguments": '{"a": 1}'}}]
    assert answer.finish_reason == "tool_calls"
    assert server.bodies[0]["tools"] == tools


async def test_completions_and_several_choices(server: Server) -> None:
    texts = [{"index": i, "text": str(i), "finish_reason": "length"} for i in range(4)]
    server.answer = events(*({"choices": [one]} for one in texts))
    answer = await said(server, "completion", prompt=["a", "b"], n=2)
    assert [one["text"] for one in answer.response["choices"]] == ["0", "1", "2", "3"]
    assert answer.finish_reason == "length" and answer.tokens == 4
    with pytest.raises(EngineFailed, match="choice 2"):
        await said(server, "completion", prompt=["a", "b"])


@pytest.mark.parametrize("stream", [True, False])
async def test_responses_are_sent_as_chats(server: Server, stream: bool) -> None:
    body = {"input": "Who?", "max_output_tokens": 5, "instructions": "Be brief.", "stream": stream}
    work = EngineWork("r", OPERATIONS.named("responses"), body, "shown-name", "s")
    async with started(server) as engine:
        answer = await run(engine, work)
    assert [one["role"] for one in server.bodies[0]["messages"]] == ["system", "user"]
    assert server.bodies[0]["max_tokens"] == 5
    call = work.operation.parse(json.dumps(body | {"model": "shown-name"}).encode())
    said = json.dumps(written(call, answer))
    assert "Good day" in said or ('"Good"' in said and '" day"' in said)
    refused = EngineWork("r", work.operation, {"input": "x", "truncation": "auto"}, "m", "s")
    async with started(server) as engine:
        with pytest.raises(InvalidRequest, match="`truncation` is not supported"):
            await run(engine, refused)


@pytest.mark.parametrize("stream", [True, False])
async def test_messages_are_sent_as_chats(server: Server, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 9_000, "system": "S",
            "stream": stream}  # fmt: skip
    work = EngineWork("r", OPERATIONS.named("messages"), body, "shown-name", "s")
    async with started(server) as engine:
        answer = await run(engine, work)
    assert [one["role"] for one in server.bodies[0]["messages"]] == ["system", "user"]
    assert server.bodies[0]["max_tokens"] == 511, "what the context holds"
    call = work.operation.parse(json.dumps(body | {"model": "shown-name"}).encode())
    said = json.dumps(written(call, answer))
    assert "Good day" in said or ('"Good"' in said and '" day"' in said)


OF = {one.name: one for one in DIALECTS}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": EMPTY}} for name in "ab"]
NAMED = {"type": "function", "function": {"name": "b"}}


@pytest.mark.parametrize(
    ("name", "asked", "sent"),
    [
        ("vLLM", {"top_k": 5, "min_tokens": 2}, {"top_k": 5, "min_tokens": 2}),
        ("llama.cpp", {"repetition_penalty": 1.5}, {"repeat_penalty": 1.5}),
        (
            "llama.cpp",
            {"tools": TOOLS, "tool_choice": NAMED},
            {"tools": TOOLS[1:], "tool_choice": "required"},
        ),
        ("OpenAI", {"max_tokens": 7}, {"max_completion_tokens": 7}),
        ("Ollama", {"max_completion_tokens": 7, "n": 1}, {"max_tokens": 7}),
        ("Ollama", {"top_p": 0}, {"temperature": 0, "max_tokens": 8}),
        ("Ollama", {"top_k": 0, "min_p": 0, "logprobs": False}, {"max_tokens": 8}),
    ],
)
async def test_fields_in_the_servers_words(
    server: Server, name: str, asked: dict[str, Any], sent: dict[str, Any]
) -> None:
    server.card["owned_by"] = OF[name].owner
    await said(server, ignore_eos=False, **asked)
    always = {"messages", "temperature", "model", "stream", "stream_options", "cache_salt"}
    fields = {name: one for name, one in server.bodies[0].items() if name not in always - {*sent}}
    assert fields.pop("max_tokens", 8) == sent.get("max_tokens", 8)
    fields.pop("ignore_eos", None)
    sent = {name: one for name, one in sent.items() if name != "max_tokens"}
    assert fields == sent


SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("OpenAI", "top_k", 5),
        ("OpenAI", "ignore_eos", True),
        ("Ollama", "n", 2),
        ("Ollama", "logit_bias", {"1": 5}),
        ("llama.cpp", "structured_outputs", {"regex": "a"}),
        ("SGLang", "echo", True),
        ("an OpenAI-compatible server", "response_format", SCHEMA),
    ],
)
async def test_what_a_server_lacks_is_refused_by_name(
    server: Server, name: str, field: str, value: Any
) -> None:
    server.card["owned_by"] = OF[name].owner or "somebody"
    with pytest.raises(InvalidRequest, match=f"`{field}`.*{name}") as refused:
        await said(server, **{"ignore_eos": False, field: value})
    assert refused.value.param == field
    assert not server.bodies


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one.name)
def test_no_dialect_takes_a_field_that_no_operation_has(dialect: Dialect) -> None:
    operations = map(OPERATIONS.named, ("chat", "completion", "embeddings"))
    known = frozenset().union(*(operation.accepted for operation in operations))
    assert dialect.fields <= known | {"chat_template_kwargs"}


@pytest.mark.parametrize(
    ("status", "answer", "kind", "message"),
    [
        (400, {"error": {"message": "Bad `seed`.", "param": "seed"}}, InvalidRequest, "Bad `seed`"),
        (422, {"message": "no"}, InvalidRequest, "^no$"),
        (400, {"error": "the request exceeds the available context size"},
         ContextLengthExceeded, "context size"),
        (400, {"error": {"message": "x", "code": "context_length_exceeded"}},
         ContextLengthExceeded, "^x$"),
        (401, {"error": {"message": "wrong key sk-123"}}, EngineFailed, "^The engine failed"),
        (404, {"error": {"message": "no such deployment"}}, EngineFailed, "^The engine failed"),
        (500, "<html>", EngineFailed, "^The engine failed"),
        (400, "[" * 5_000, InvalidRequest, "not valid"),
        (429, {"error": {"message": "slow down"}}, Overloaded, "queues for this model are full"),
        (503, {}, Overloaded, "queues for this model are full"),
    ],
)  # fmt: skip
async def test_refusals_are_ours(
    server: Server, status: int, answer: Any, kind: type[Exception], message: str
) -> None:
    server.status, server.listed = 200, ""
    async with started(server) as engine:
        server.status = status
        server.answer = answer if isinstance(answer, str) else json.dumps(answer)
        with pytest.raises(kind, match=message) as found:
            await ask(engine)
        assert type(found.value) is kind
        assert "sk-123" not in str(found.value) and engine.alive


@pytest.mark.parametrize(
    "answer",
    [
        SAID.removesuffix(END).replace('"stop"', "null"),  # it never says why it ended
        END,
        events({"error": {"message": "out of memory", "code": 500}}),
        "data: {\n\n",
        events({"choices": [{"index": "x"}]}),
        events({"choices": [{"index": 0, "delta": {"content": 5}}]}),
        "data: " + "[" * 5_000 + "\n\n",
    ],
)
async def test_a_broken_answer_fails_that_request_alone(server: Server, answer: str) -> None:
    async with started(server) as engine:
        server.answer = answer
        with pytest.raises(EngineFailed):
            await ask(engine, stream=True)
        server.answer = SAID
        assert (await ask(engine)).finish_reason == "stop"
        assert engine.stats().running == 0


async def test_what_was_used_is_estimated_if_the_server_does_not_say(server: Server) -> None:
    server.answer = SAID.partition('data: {"choices": []')[0] + END
    told = await said(server)
    assert told.meter.completion_tokens == told.tokens == 2
    assert told.meter.prompt_tokens == len(json.dumps(server.bodies[0], separators=(",", ":"))) // 4
    assert told.meter.is_estimated


async def test_an_estimate_is_journaled_as_one(server: Server, tmp_path: Path) -> None:
    server.answer = SAID.partition('data: {"choices": []')[0] + END
    async with started(server) as engine, rig(tmp_path, engine=engine) as made:
        async with made.gateway.client() as client:
            for _ in range(2):
                answer = await client.post("/v1/chat/completions", json=chat("shown"))
                assert answer.is_success
                server.answer = SAID
        entries = await made.gateway.ledger.settled(2)
    assert [one.usage.is_estimated for one in entries] == [True, False]


async def test_what_the_server_says_is_no_estimate(server: Server) -> None:
    answer = await said(server)
    assert not answer.meter.is_estimated
    async with started(server) as engine:
        server.status, server.answer = 400, "{}"
        refused = work_of()
        with pytest.raises(InvalidRequest):
            await run(engine, refused)
        assert refused.meter == Meter(), "nothing was used"


async def test_who_leaves_ends_the_request_there(server: Server) -> None:
    server.answer, server.holds = SAID.partition('data: {"choices": []')[0], True
    async with started(server) as engine:
        answer = await cut_after(engine, work_of(stream=True), 2)
        await server.left.wait()
        assert answer.meter.completion_tokens == 2 and answer.meter.prompt_tokens > 0
        assert answer.meter.is_estimated
        assert engine.stats().running == 0


async def test_a_broken_connection_is_another_engines_chance(server: Server) -> None:
    server.breaks = True
    with pytest.raises(EngineFailed, match="connection to the upstream broke"):
        await said(server)


@pytest.mark.parametrize(("idle_s", "connections"), [(60.0, 1), (0.0, 3)])
async def test_no_request_is_sent_on_a_connection_that_idled_for_long(
    server: Server, monkeypatch: pytest.MonkeyPatch, idle_s: float, connections: int
) -> None:
    """Servers close one after 5 s, and a request that meets that is lost."""
    assert connection.IDLE_S < 5
    monkeypatch.setattr(connection, "IDLE_S", idle_s)
    server.keeps = True
    async with started(server) as engine:
        assert (await ask(engine)).tokens == (await ask(engine)).tokens == 3
    assert server.connections == connections


async def test_an_engine_whose_server_is_gone_ends(server: Server) -> None:
    engine = await server.engine()
    engine._client.base_url = "http://127.0.0.1:1/v1/"
    with pytest.raises(EngineFailed, match="can't be reached"):
        await ask(engine)
    assert not engine.alive


async def test_adapters_continued_answers_and_other_operations_are_refused(
    server: Server, tmp_path: Any
) -> None:
    from inference.agent.engines.engine import LocalAdapter
    from inference.link.engine_info import AdapterRef

    adapter = LocalAdapter(AdapterRef("acme/bot@1", "1"), 1, tmp_path)
    async with started(server) as engine:
        for refused in (engine.load, engine.probe):
            with pytest.raises(AdapterLoadFailed):
                await refused(adapter)
        await engine.unload(adapter)
        with pytest.raises(AdapterLoadFailed):
            await run(engine, work_of(adapter=adapter))
        continued = work_of()
        continued.resume = Resume({0: [1]}, {})
        with pytest.raises(EngineFailed, match="can't be continued"):
            await run(engine, continued)
        embeds = EngineWork("1", OPERATIONS.named("embeddings"), {"input": "x"}, "m", "s")
        with pytest.raises(InvalidRequest, match="does not support this operation"):
            await run(engine, embeds)
        await engine.ping()
        assert engine.cache_news() is None
        assert not engine.info.resumes and engine.info.operations == [
            "chat",
            "completion",
            "responses",
            "messages",
        ]


@pytest.mark.parametrize(
    ("prepare", "options", "why"),
    [
        (lambda one: one.card.pop("max_model_len"), {}, "set --max-model-len"),
        (lambda one: one.card.update(max_model_len=-1), {}, "set --max-model-len"),
        (lambda one: None, {"model": "other"}, "no model 'other'.* of its own: upstream/model"),
        (lambda one: setattr(one, "listed", "<html>"), {}, "must include /v1"),
        (lambda one: setattr(one, "listed", '{"data": [1]}'), {}, "of its own: none"),
        (lambda one: setattr(one, "status", 401), {}, "LORIKEET_UPSTREAM_KEY is missing or wrong"),
        (lambda one: setattr(one, "url", "http://127.0.0.1:1/v1"), {}, "does not answer"),
    ],
)
async def test_it_does_not_start_without_the_model(
    server: Server, prepare: Callable[[Server], object], options: dict[str, Any], why: str
) -> None:
    prepare(server)
    with pytest.raises(EngineNotStarted, match=why):
        await server.engine(**options)


async def test_it_says_what_it_serves(server: Server) -> None:
    server.card = {"id": "gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 8192}}
    async with started(server, profile={"max_model_len": 4096}) as engine:
        assert (engine.info.name, engine.info.max_model_len) == ("shown", 4096)
        assert engine.info.engine_version == "llama.cpp"
        assert any("prefix cache between tenants" in one for one in engine.info.degraded)
    server.card["meta"]["n_ctx"] = 2048  # with which the server was started
    async with started(server) as engine:
        assert engine.info.max_model_len == 2048
    server.card["meta"] = {"n_ctx_train": 8192}
    async with started(server, dialect="vllm") as engine:
        assert engine.info.max_model_len == 8192 and engine.info.engine_version == "vLLM"
        assert not any("prefix cache" in one for one in engine.info.degraded)
        assert "It serves no adapters." in engine.info.degraded


@pytest.mark.parametrize("overflow", [False, True])
async def test_it_says_whether_it_is_overflow(server: Server, overflow: bool) -> None:
    given = ["--engine", "upstream", "--model", "org/m", "--upstream-url", server.url]
    options = parser().parse_args([*given, *(["--overflow"] if overflow else [])])
    engine = await start_engine(options, profile_of(options))
    assert engine.info.overflow == overflow
    await engine.close()


def test_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--engine", "upstream", "--model", "org/m"]
    options = parser().parse_args([*given, "--upstream-url", "http://here:1/v1"])
    assert profile_of(options).name == "m" and profile_of(options).extra == {}
    with pytest.raises(BadProfile, match="upstream_url is 'here:1'"):
        profile_of(parser().parse_args([*given, "--upstream-url", "here:1"]))
    with pytest.raises(BadProfile, match="upstream_dialect is 'vlm': it must be of vllm, openai"):
        monkeypatch.setenv("LORIKEET_UPSTREAM_DIALECT", "vlm")
        profile_of(parser().parse_args([*given, "--upstream-url", "http://here:1/v1"]))
    monkeypatch.delenv("LORIKEET_UPSTREAM_DIALECT")
    with pytest.raises(BadProfile, match="overflow needs --engine upstream"):
        profile_of(parser().parse_args(["--model", "org/m", "--overflow"]))
    with pytest.raises(BadProfile, match="overflow serves no adapters"):
        both = ["--overflow", "--upstream-adapters", "/srv/adapters"]
        profile_of(parser().parse_args(["--engine", "upstream", "--model", "org/m", *both]))


@pytest.mark.pure
def test_events_may_come_in_any_pieces() -> None:
    text = b"event: x\ndata: {1}\r\n\r\n: note\n\ndata:{2}\n\ndata: [DONE]\n\n"
    for cut in range(len(text)):
        feed = EventStream()
        assert [*feed.feed(text[:cut]), *feed.feed(text[cut:])] == [b"{1}", b"{2}"]
    with pytest.raises(EngineFailed, match="more than 4194304 bytes"):
        list(EventStream().feed(b"data: " + b"x" * MAX_EVENT))
