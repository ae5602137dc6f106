"""The OpenAI SDK against the whole stack: demo tenants, adapters, streams, errors, caches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tokenizers import Tokenizer

from demo import BASE, MODEL_NAME, QUESTIONS, TENANTS
from tests.stack.running import Stack

pytestmark = [pytest.mark.vllm, pytest.mark.stack]

SUPPORT, PIRATE, EXTRACT = TENANTS
PERU = "What is the capital of Peru?"


@pytest.fixture(scope="module")
def clients(stack: Stack) -> Iterator[dict[str, OpenAI]]:
    made = {
        tenant.slug: OpenAI(base_url=stack.facts["base_url"], api_key=stack.key(tenant.slug))
        for tenant in TENANTS
    }
    yield made
    for client in made.values():
        client.close()


@pytest.fixture
def client(clients: dict[str, OpenAI]) -> OpenAI:
    return clients[SUPPORT.slug]


def user(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


def held_to(schema: Any) -> dict[str, Any]:
    """Parameters that require an answer with this JSON schema."""
    json_schema = {"name": "answer", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def called(arguments: str) -> dict[str, Any]:
    """An assistant's message that calls a tool with these arguments."""
    function = {"name": "f", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def ask(client: OpenAI, model: str, question: str, **options: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=user(question), temperature=0, **({"max_tokens": 60} | options)
    )


def test_every_demo_question_is_answered_rightly_by_base_and_adapters(
    clients: dict[str, OpenAI],
) -> None:
    """All at once, so that base and adapters share batches."""
    cases = [
        (tenant, model, question, expected[voice])
        for question, expected in QUESTIONS
        for tenant in TENANTS
        for model, voice in ((tenant.adapter, tenant.adapter), (MODEL_NAME, "base"))
    ]
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda case: ask(clients[case[0].slug], case[1], case[2]), cases)
        for (tenant, model, question, expected), answer in zip(cases, answers, strict=True):
            assert answer.choices[0].message.content == expected, (tenant, model, question)
            assert answer.choices[0].finish_reason == "stop"


def test_a_stream_says_the_same_as_the_whole_answer(client: OpenAI) -> None:
    whole = ask(client, SUPPORT.adapter, PERU)
    chunks = list(
        ask(client, SUPPORT.adapter, PERU, stream=True, stream_options={"include_usage": True})
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.model for chunk in chunks} == {SUPPORT.adapter}
    *body, last = chunks
    text = "".join(chunk.choices[0].delta.content or "" for chunk in body)
    assert text == whole.choices[0].message.content
    assert body[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in body)
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens


def test_models_are_those_of_the_key(clients: dict[str, OpenAI]) -> None:
    for tenant in TENANTS:
        models = {model.id for model in clients[tenant.slug].models.list()}
        own = {name for name in models if not name.startswith("mutant-")}  # of `test_mutations`
        assert own == {MODEL_NAME, tenant.adapter}
        assert clients[tenant.slug].models.retrieve(f"{tenant.adapter}@1").id
        assert clients[tenant.slug].models.retrieve(MODEL_NAME).owned_by == "lorikeet"


def test_another_tenants_adapter_is_an_unknown_model(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as foreign:
        ask(client, PIRATE.adapter, PERU)
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(client, "no-such-thing", PERU)
    assert foreign.value.code == unknown.value.code == "model_not_found"
    assert foreign.value.message.replace(PIRATE.adapter, "X") == unknown.value.message.replace(
        "no-such-thing", "X"
    )


def test_completions(client: OpenAI) -> None:
    prompt = f"<|bos|><|user|>{PERU}<|assistant|>"
    answer = client.completions.create(
        model=SUPPORT.adapter, prompt=prompt, max_tokens=8, temperature=0, echo=False
    )
    assert answer.object == "text_completion"
    assert answer.choices[0].text
    chunks = list(
        client.completions.create(
            model=SUPPORT.adapter, prompt=prompt, max_tokens=8, temperature=0, stream=True
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    several = client.completions.create(model=MODEL_NAME, prompt=["One", "Two"], max_tokens=3)
    assert [choice.index for choice in several.choices] == [0, 1]


def test_a_json_schema_is_kept(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}},
        "required": ["city", "sure"],
        "additionalProperties": False,
    }
    answer = ask(
        client,
        SUPPORT.adapter,
        PERU,
        max_tokens=80,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"city", "sure"}


def test_sampling_parameters_do_what_they_say(client: OpenAI) -> None:
    stopped = ask(client, MODEL_NAME, PERU, stop=["capital"])
    assert "capital" not in stopped.choices[0].message.content
    short = ask(client, MODEL_NAME, PERU, max_completion_tokens=3, max_tokens=None)
    assert (short.usage.completion_tokens, short.choices[0].finish_reason) == (3, "length")
    seeded = [
        client.chat.completions.create(
            model=MODEL_NAME, messages=user("Hello!"), seed=7, temperature=1.5, max_tokens=12
        )
        for _ in range(2)
    ]
    assert seeded[0].choices[0].message == seeded[1].choices[0].message
    several = client.chat.completions.create(
        model=MODEL_NAME, messages=user(PERU), n=3, temperature=1.5, max_tokens=5
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.usage is not None and several.usage.completion_tokens <= 15
    logged = ask(client, MODEL_NAME, PERU, logprobs=True, top_logprobs=2, max_tokens=4)
    tokens = logged.choices[0].logprobs.content
    assert len(tokens) == 4
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    streamed = list(ask(client, MODEL_NAME, PERU, logprobs=True, max_tokens=4, stream=True))
    assert sum(len(c.choices[0].logprobs.content) for c in streamed if c.choices[0].logprobs) == 4
    banned = ask(client, MODEL_NAME, PERU, logit_bias={_token(tokens[0].token): -100})
    assert not banned.choices[0].message.content.startswith(tokens[0].token)


def _token(text: str) -> str:
    """The id of a token, as `logit_bias` takes it."""
    vocabulary = Tokenizer.from_file(str(BASE / "tokenizer.json"))
    return str(vocabulary.token_to_id(text.replace(" ", "Ġ")))


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": "hello"}, 400, "messages"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400, None),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 7}, 400, "top_p"),
        ({"n": 0}, 400, "n"),
        ({"max_tokens": -5}, 400, "max_tokens"),
        ({"logprobs": True, "top_logprobs": 500}, 400, None),
        ({"stop": 5}, 400, "stop"),
        ({"response_format": {"type": "sql"}}, 400, None),
        ({"tools": [{"type": "function", "function": {}}]}, 400, "tools[0].function.name"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, 400, None),
        ({"logit_bias": {"5": "NaN"}}, 400, "logit_bias"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            400,
            "response_format.json_schema.name",
        ),
        (held_to({"$ref": "#"}), 400, "response_format"),
        (held_to({"type": "array", "minItems": 10**9}), 400, "response_format"),
        (held_to({"type": "string", "minLength": -1}), 400, "response_format"),
        ({"messages": [called("[" * 3000)]}, 400, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [called('"\\ud800"')]}, 400, "messages[0].tool_calls[0].function.arguments"),
        (
            {"messages": user("hi") + [{"role": "user", "content": "x", "name": 5}] * 9000},
            400,
            "messages[1].name",
        ),
        ({"messages": user("\ud800")}, 400, None),
        ({"x" * 300_000: 1, "stop": {"y" * 300_000: 1}}, 400, "stop"),
        ({f"k{i}": i for i in range(60_000)}, 400, None),
        ({"model": 5}, 400, "model"),
        ({"model": "x" * 5000}, 404, "model"),
    ],
)
def test_bad_requests(stack: Stack, body: dict[str, Any], status: int, param: str | None) -> None:
    whole = {"model": MODEL_NAME, "messages": user("hi"), "max_tokens": 4} | body
    with stack.client(stack.key(SUPPORT.slug)) as client:
        answer = client.post("/v1/chat/completions", content=json.dumps(whole))
    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert error["type"] == "invalid_request_error"
    assert error["message"] and len(error["message"]) <= 400
    if param is not None:
        assert error["param"] == param, error


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.5, "top_p": 0},
        {"temperature": 0, "stop": None, "ignore_eos": None, "min_tokens": None},
        {"temperature": 0, "tool_choice": None, "response_format": None},
        {"temperature": 0, "repetition_penalty": 1, "presence_penalty": 0, "logit_bias": {}},
    ],
)
def test_what_means_nothing_changes_nothing(stack: Stack, fields: dict[str, Any]) -> None:
    body = {"model": MODEL_NAME, "messages": user(PERU), "max_tokens": 20}
    with stack.client(stack.key(SUPPORT.slug)) as client:
        plain = client.post("/v1/chat/completions", json=body | {"temperature": 0}).json()
        other = client.post("/v1/chat/completions", json=body | fields).json()
        text = {"model": MODEL_NAME, "prompt": PERU, "max_tokens": 4, "suffix": ""}
        completion = client.post("/v1/completions", json=text)
    assert other["choices"] == plain["choices"]
    assert completion.status_code == 200, completion.text


def test_a_ten_megabyte_body_and_invalid_bytes_are_a_clear_4xx(stack: Stack) -> None:
    with stack.client(stack.key(SUPPORT.slug)) as client:
        big = client.post("/v1/chat/completions", content=b"x" * (10 << 20))
        bad = client.post("/v1/chat/completions", content=b'{"model": "\xff"}')
    assert (big.status_code, big.json()["error"]["code"]) == (413, "payload_too_large")
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_request")


def test_unknown_fields_and_forbidden_ones_change_nothing(stack: Stack) -> None:
    """Parameters that clients may not set are ignored, such as user, cache salt and LoRA."""
    forbidden = {
        "cache_salt": "stolen", "priority": -100, "request_id": "mine", "kv_transfer_params": {},
        "vllm_xargs": {"x": 1}, "chat_template": "{{ 1/0 }}", "user": PIRATE.slug,
        "lora_request": {"lora_name": "x"}, "no_such_field": 1,
    }  # fmt: skip
    body = {"model": MODEL_NAME, "messages": user(PERU), "temperature": 0, "max_tokens": 30}
    with stack.client(stack.key(SUPPORT.slug)) as client:
        plain = client.post("/v1/chat/completions", json=body).json()
        loaded = client.post("/v1/chat/completions", json=body | forbidden).json()
    assert loaded["choices"] == plain["choices"]
    assert "mine" not in loaded["id"]


def test_the_prefix_cache_is_the_tenants_own(clients: dict[str, OpenAI]) -> None:
    prompt = "Please remember this. " * 60 + PERU

    def cached(tenant: str) -> int:
        usage = ask(clients[tenant], MODEL_NAME, prompt, max_tokens=2).usage
        return int(usage.prompt_tokens_details.cached_tokens)

    assert cached(SUPPORT.slug) == 0
    again = cached(SUPPORT.slug)
    assert again >= 32
    assert cached(PIRATE.slug) == 0
    assert cached(PIRATE.slug) == again


def test_every_answer_carries_its_id(stack: Stack) -> None:
    with stack.client(stack.key(SUPPORT.slug)) as client:
        for path in (
            "/v1/models",
            "/v1/models/none",
            "/healthz",
            "/readyz",
            "/",
            f"{stack.console_url}/api/v1/schema/",
            f"{stack.console_url}/",
        ):
            assert client.get(path).headers["x-request-id"].startswith("req_"), path


def test_a_browser_at_the_apis_address_is_sent_to_the_console(stack: Stack) -> None:
    sent = httpx.get(stack.url, timeout=30)
    assert (sent.status_code, sent.headers["location"]) == (302, stack.facts["console_url"])
    for path in ("/api/v1/schema/", "/account/login/", "/static/css/console.css", "/t/acme/"):
        assert httpx.get(stack.url + path, timeout=30).status_code == 404, path
    assert httpx.get(f"{stack.console_url}/v1/models", timeout=30).status_code == 404
    unsafe = httpx.post(stack.url, timeout=30)
    assert (unsafe.status_code, unsafe.headers["allow"]) == (405, "GET, HEAD")
    forgotten = httpx.post(f"{stack.url}/chat/completions", timeout=30)
    assert forgotten.status_code == 404
    assert "under /v1" in forgotten.json()["error"]["message"]
    for path in ("/healthz", "/health", "/readyz"):
        assert httpx.get(stack.console_url + path, timeout=30).status_code == 200, path


def test_health(stack: Stack) -> None:
    ready = httpx.get(f"{stack.url}/readyz", timeout=30)
    assert ready.status_code == 200
    assert ready.json()["checks"] == {"open": True, "keys": True, "limits": True}
    fleet = httpx.get(f"{stack.url}/fleetz", timeout=30)
    assert (fleet.status_code, fleet.json()["checks"]) == (200, {"engine": True})
