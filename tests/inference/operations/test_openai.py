"""The OpenAI API: how a body is read, and the exact bytes of answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import BY_CODE, InferenceError, InvalidRequest, RateLimitExceeded
from inference.link.accounts import Usage
from inference.link.workload import Workload
from inference.operations import openai
from inference.operations.bodies.reading import MAX_INNER_CHARS
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION, COMPLETION_TOKENS
from inference.operations.error_shapes import OPENAI
from inference.operations.operation import Call, Framing, Operation
from inference.operations.registry import OPERATIONS
from tests.inference.operations.examples import EXAMPLES

pytestmark = pytest.mark.pure

USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3, reasoning_tokens=1)


def events(data: bytes) -> list[Any]:
    """The payloads of server-sent events; `[DONE]` as text."""
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    payloads = [part.removeprefix("data: ") for part in parts]
    return [one if one == "[DONE]" else json.loads(one) for one in payloads]


def framing_of(call: Call) -> Framing:
    return call.operation.framing(call, "1", 0)


def chat(**fields: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    ).encode()


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b"[]", None, "must be a JSON object"),
        (b"nonsense", None, "not valid JSON"),
        (b"[" * 100_000, None, "JSON"),
        (b'{"a":' + b"[" * 100_000, None, "not valid JSON"),
        (chat() + b"x", None, "trailing"),
        (b"{}", "model", "provide a model parameter"),
        (chat(model=""), "model", "provide a model parameter"),
        (chat(model=7), "model", "expected `str`, got `int`"),
        (chat(model=None), "model", "expected `str`"),
        (b'{"model":"m"}', "messages", "at least one message"),
        (chat(messages=[]), "messages", "at least one message"),
        (chat(messages="hi"), "messages", "expected `array`"),
        (chat(max_completion_tokens=0), "max_completion_tokens", ">= 1"),
        (chat(max_tokens=0), "max_tokens", ">= 1"),
        (chat(temperature=2.5), "temperature", "<= 2.0"),
        (chat(presence_penalty=-3), "presence_penalty", ">= -2.0"),
        (chat(repetition_penalty=0), "repetition_penalty", "> 0.0"),
        (chat(top_k=-2), "top_k", ">= -1"),
        (chat(n=0), "n", ">= 1"),
        (chat(stream="yes"), "stream", "expected `bool"),
        (chat(logit_bias={"5": "NaN"}), "logit_bias", "expected `float`, got `str`"),
        (chat(logit_bias=[5]), "logit_bias", "expected `object"),
        (chat(temperature="NaN"), "temperature", "expected `float"),
        (chat(top_p=True), "top_p", "expected `float"),
        (chat(stop=["a", 5]), "stop[1]", "expected `str`"),
        (chat(allowed_token_ids=[1, "2"]), "allowed_token_ids[1]", "expected `int`"),
        (chat(seed=1.5), "seed", "expected `int"),
        (chat()[:-1] + b',"min_p":1e999}', "min_p", "out of range"),
        (chat()[:-1] + b',"x":"\\ud800"}', None, "`\\ud800` is a lone surrogate"),
        (chat()[:-1] + b',"x":"\\uDC0a."}', None, "`\\uDC0a` is a lone surrogate"),
        (chat(stream_options={}), "stream_options", "only allowed when `stream`"),
        (chat(service_tier="gold"), "service_tier", "invalid enum value 'gold'"),
        (chat(safety_identifier="x" * 129), "safety_identifier", "length <= 128"),
        (chat(parallel_tool_calls="no"), "parallel_tool_calls", "expected `bool"),
        (chat(stream=True, stream_options=5), "stream_options", "expected `object"),
        (
            chat(stream=True, stream_options={"include_usage": 3}),
            "stream_options.include_usage",
            "expected `bool",
        ),
    ],
)
def test_a_bad_body_is_refused_by_name(body: bytes, param: str | None, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        CHAT.parse(body)
    assert refused.value.param == param
    assert says in refused.value.message


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
NESTED = '{"a":' * 3000


def called(*calls: Any) -> bytes:
    """A chat whose assistant message has these tool calls."""
    return chat(
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": calls}]
    )


def with_arguments(arguments: Any) -> dict[str, Any]:
    return CALL | {"function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (chat(messages=["hi"]), "messages[0]", "expected `object`"),
        (chat(messages=[{"role": 5}]), "messages[0].role", "expected `str"),
        (chat(messages=[{}, {"name": 5}]), "messages[1].name", "expected `str"),
        (chat(messages=[{"content": 5}]), "messages[0].content", "expected `str"),
        (chat(messages=[{"content": [{}, "x"]}]), "messages[0].content[1]", "expected `object`"),
        (chat(messages=[{"content": [{"text": 5}]}]), "messages[0].content[0].text", "`str"),
        (called("f"), "messages[1].tool_calls[0]", "expected `object`"),
        (called(CALL, {"id": "2"}), "messages[1].tool_calls[1].function", "missing"),
        (called({"function": CALL["function"]}), "messages[1].tool_calls[0].id", "missing"),
        (
            called(CALL | {"function": {"arguments": ""}}),
            "messages[1].tool_calls[0].function.name",
            "missing",
        ),
        (
            called(CALL | {"function": {"name": "f"}}),
            "messages[1].tool_calls[0].function.arguments",
            "missing",
        ),
        (
            called(CALL, with_arguments(NESTED)),
            "messages[1].tool_calls[1].function.arguments",
            "128 levels",
        ),
        (
            called(*[with_arguments("[1" + ",1" * 30_000)] * 2),
            "messages[1].tool_calls[1].function.arguments",
            "50000 values",
        ),
        (
            called(*[with_arguments("1" * (MAX_INNER_CHARS // 2 + 1))] * 2),
            "messages[1].tool_calls[1].function.arguments",
            "more than 1048576 characters of arguments",
        ),
        (
            called(with_arguments('{"a": "\\ud800"}')),
            "messages[1].tool_calls[0].function.arguments",
            "lone surrogate",
        ),
    ],
)
def test_a_wrong_message_is_refused_by_name(body: bytes, param: str, says: str) -> None:
    """The gateway refuses it, because an engine's reader would report thousands of errors."""
    with pytest.raises(InvalidRequest) as refused:
        CHAT.parse(body)
    assert refused.value.param == param
    assert says in refused.value.message


@pytest.mark.parametrize("arguments", ["", "no JSON", '{"a": "\\ud83d\\ude00"}', "[" * 128])
def test_arguments_of_tool_calls_need_not_be_json(arguments: str) -> None:
    """A model generated them, and the conversation must be able to continue."""
    CHAT.parse(called(CALL, with_arguments(arguments)))


def test_unknown_fields_of_messages_are_accepted() -> None:
    parts = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
    CHAT.parse(chat(messages=[{"role": "user", "content": parts, "id": 5, "name": None}]))
    CHAT.parse(chat(messages=[{"role": "assistant", "content": None, "tool_calls": None}]))


def test_a_completion_needs_a_prompt() -> None:
    with pytest.raises(InvalidRequest) as refused:
        COMPLETION.parse(b'{"model":"m"}')
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "prompts", "tokens"),
    [
        ("hi", 1, 0),
        (["a", "b, [c]"], 2, 0),
        ([1, 2], 1, 2),
        ("", 1, 0),
        ([[1, 2], [3]], 2, 3),
        ([[1, 2]], 1, 2),
        ([], 1, 1),
        ({"a": 1}, 1, 0),
    ],
)
def test_any_prompt_is_left_to_the_engine(prompt: object, prompts: int, tokens: int) -> None:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    call = COMPLETION.parse(body)
    assert call == Call(
        COMPLETION,
        "m",
        workload=Workload(
            prompts=prompts,
            prompt_tokens=tokens,
            choices=prompts,
            max_tokens=COMPLETION_TOKENS,
        ),
        body=body,
    )


def test_the_number_of_choices_is_bounded() -> None:
    def ask(prompts: int, n: int) -> Call:
        body = {"model": "m", "prompt": ["a"] * prompts, "n": n}
        return COMPLETION.parse(json.dumps(body).encode())

    assert ask(64, 16).workload.choices == openai.MAX_CHOICES
    for prompts, n in ((64, 17), (1025, 1), (1, 10**18)):
        with pytest.raises(InvalidRequest, match="at most 1024") as refused:
            ask(prompts, n)
        assert refused.value.param == "n"


@pytest.mark.parametrize(
    ("fields", "choices", "max_tokens", "flex"),
    [
        ({}, 1, None, False),
        ({"max_tokens": 7, "n": 3}, 3, 7, False),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 1, 9, False),
        ({"n": None, "max_tokens": None, "service_tier": "flex"}, 1, None, True),
        ({"service_tier": "auto"}, 1, None, False),
    ],
)
def test_what_a_chat_may_use_is_read(
    fields: dict[str, Any], choices: int, max_tokens: int | None, flex: bool
) -> None:
    body = json.dumps({"model": "m", "messages": [{}], **fields}).encode()
    call = CHAT.parse(body)
    assert (call.workload.choices, call.workload.max_tokens, call.flex) == (
        choices,
        max_tokens,
        flex,
    )


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0ms"),
        (0.0124, "12ms"),
        (1.5, "1.5s"),
        (59.9994, "59.999s"),
        (60, "1m0s"),
        (119.6, "2m0s"),
        (361, "6m1s"),
    ],
)
def test_spans_are_written_as_openai_does(seconds: float, shown: str) -> None:
    assert openai.span(seconds) == shown


@pytest.mark.parametrize("operation", [CHAT, COMPLETION])
def test_an_answer_that_a_limit_ended_says_so(operation: Operation) -> None:
    answer = framing_of(Call(operation, "m", True))
    limited = RateLimitExceeded("No more.")
    details = {"code": "rate_limit_exceeded", "message": "No more."}
    (event,) = events(answer.closing("length", limited))
    assert event["choices"][0]["finish_details"] == details
    whole = json.loads(answer.whole("a", "length", Usage(), limited))
    assert whole["choices"][0]["finish_details"] == details
    assert "finish_details" not in json.loads(answer.whole("a", "stop", Usage()))["choices"][0]
    made = b'{"choices":[{"finish_reason":"length"},{"finish_reason":"stop"}]}'
    cut, whole_one = json.loads(answer.response(made, limited))["choices"]
    assert cut == {"finish_reason": "length", "finish_details": details}
    assert whole_one == {"finish_reason": "stop"}
    assert json.loads(answer.response(made, None))["choices"] == json.loads(made)["choices"]


@pytest.mark.parametrize("operation", [CHAT, COMPLETION])
def test_each_choice_ends_once(operation: Operation) -> None:
    answer = framing_of(Call(operation, "m", True, workload=Workload(choices=3)))
    answer.chunk(b'{"choices":[{"index":0,"finish_reason":null}]}')
    answer.chunk(b'{"choices":[{"index":1,"finish_reason":"stop"}]}')
    answer.chunk(b'{"choices":[{"index":2}]}')
    (event,) = events(answer.closing("length", RateLimitExceeded("No more.")))
    ended = [(choice["index"], choice["finish_reason"]) for choice in event["choices"]]
    assert ended == [(0, "length"), (2, "length")]
    answer.chunk(
        b'{"choices":[{"index":0,"finish_reason":"stop"},{"index":2,"finish_reason":"x"}]}'
    )
    assert answer.closing("stop") == b""


def test_unknown_fields_are_ignored_and_nulls_mean_absent() -> None:
    body = chat(stream=None, stream_options=None, service_tier="auto", whatever={"a": [1]})
    assert CHAT.parse(body) == Call(CHAT, "m", body=body)


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 0),
        ({"logprobs": None, "top_logprobs": 5}, 0),
        ({"logprobs": False, "top_logprobs": 5}, 0),
        ({"logprobs": True}, 1),
        ({"logprobs": True, "top_logprobs": 20}, 21),
        ({"prompt_logprobs": None}, 0),
        ({"prompt_logprobs": 0}, 1),
        ({"prompt_logprobs": 20, "logprobs": True, "top_logprobs": 5}, 21),
        ({"prompt_logprobs": 1, "logprobs": True, "top_logprobs": 5}, 6),
        ({"echo": True}, 1),
        ({"echo": True, "logprobs": True, "top_logprobs": 5}, 6),
        ({"echo": False}, 0),
    ],
)
def test_a_chat_asks_for_log_probabilities_of_each_token(
    fields: dict[str, Any], count: int
) -> None:
    assert CHAT.parse(chat(**fields)).workload.logprobs == count


@pytest.mark.parametrize("operation", [CHAT, COMPLETION])
@pytest.mark.parametrize("fields", [{"prompt_logprobs": n} for n in (-1, 21, "x", 1.5)])
def test_a_prompt_has_at_most_20_log_probabilities_per_token(
    operation: Operation, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        operation.parse(json.dumps(EXAMPLES[operation.name].body() | fields).encode())
    assert refused.value.param == "prompt_logprobs"


def test_no_chunk_has_a_prompts_log_probabilities() -> None:
    with pytest.raises(InvalidRequest, match="not supported with `stream`") as refused:
        CHAT.parse(chat(prompt_logprobs=0, stream=True))
    assert refused.value.param == "prompt_logprobs"


@pytest.mark.parametrize(("logprobs", "count"), [(None, 0), (0, 1), (5, 6), (-1, 1)])
def test_a_completion_asks_for_the_tokens_own_and_others(logprobs: int | None, count: int) -> None:
    body = json.dumps({"model": "m", "prompt": "hi", "logprobs": logprobs}).encode()
    assert COMPLETION.parse(body).workload.logprobs == count
    assert COMPLETION.parse(b'{"model":"m","prompt":"hi"}').workload.logprobs == 0


def test_taking_the_body_removes_it_from_the_call() -> None:
    call = CHAT.parse(chat())
    assert call.take_body() == chat()
    assert call.body == b""


def test_usage_is_included_only_when_asked_for() -> None:
    assert CHAT.parse(chat(stream=True)).include_usage is False
    assert CHAT.parse(chat(stream=True, stream_options={"include_usage": True})).include_usage


@given(st.binary(max_size=200))
def test_no_body_crashes_the_parser(body: bytes) -> None:
    for operation in OPERATIONS:
        try:
            operation.parse(body)
        except InvalidRequest as error:
            assert error.message


@pytest.mark.parametrize("operation", [CHAT, COMPLETION])
@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_as_clients_expect_it(operation: Operation, include_usage: bool) -> None:
    answer = operation.framing(Call(operation, "my/model", True, include_usage), "abc", 1700)
    data = answer.opening() + answer.text('a"\n') + answer.text("é") + answer.closing("stop")
    *chunks, done = events(data + answer.ending(USAGE))
    assert done == "[DONE]"
    prefix, object_ = {
        CHAT: ("chatcmpl", "chat.completion.chunk"),
        COMPLETION: ("cmpl", "text_completion"),
    }[operation]
    for chunk in chunks:
        assert (chunk["id"], chunk["object"]) == (f"{prefix}-abc", object_)
        assert (chunk["created"], chunk["model"]) == (1700, "my/model")
    if include_usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == 13
        assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
        assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}
    assert all(
        chunk.get("usage", "absent") == (None if include_usage else "absent") for chunk in chunks
    )
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "stop"
    if operation is CHAT:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in choices) == 'a"\né'
    else:
        assert "".join(c["text"] for c in choices) == 'a"\né'


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_chunk_made_by_the_engine_is_passed_on(include_usage: bool) -> None:
    answer = framing_of(Call(CHAT, "m", True, include_usage))
    (chunk,) = events(answer.chunk(b'{"id":"x","choices":[]}'))
    told = {"service_tier": "default"} | ({"usage": None} if include_usage else {})
    assert chunk == {"id": "x", "choices": []} | told


def test_each_chunk_may_say_how_many_tokens_there_are_so_far() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = framing_of(CHAT.parse(chat(stream=True, stream_options=options)))
    answer.counted(5, 4)
    data = answer.opening()
    answer.generated(2)
    data += answer.text("Hello") + answer.chunk(b'{"choices":[]}')
    answer.generated(1)
    data += answer.text("!") + answer.closing("stop") + answer.ending(USAGE)
    *chunks, done = events(data)
    assert done == "[DONE]"
    counts = [(one["usage"]["prompt_tokens"], one["usage"]["total_tokens"]) for one in chunks]
    assert counts == [(5, 5), (5, 7), (5, 7), (5, 8), (5, 8), (10, 13)]
    assert chunks[0]["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_tokens_so_far_need_the_usage_at_the_end() -> None:
    options = {"continuous_usage_stats": True}
    call = CHAT.parse(chat(stream=True, stream_options=options))
    assert not call.running_usage
    answer = framing_of(call)
    answer.counted(5, 4)
    answer.generated(2)
    assert all("usage" not in chunk for chunk in events(answer.text("a"))[:1])


REVISION = "0123456789abcdef" * 4
FINGERPRINT = {"system_fingerprint": "fp_0123456789ab"}


@pytest.mark.parametrize(
    ("operation", "revision", "told"),
    [
        (CHAT, "", {"service_tier": "default"}),
        (CHAT, REVISION, {"service_tier": "default"} | FINGERPRINT),
        (COMPLETION, "", {}),
        (COMPLETION, REVISION, FINGERPRINT),
    ],
)
def test_every_answer_and_chunk_says_how_it_was_made(
    operation: Operation, revision: str, told: dict[str, str]
) -> None:
    """Whether the gateway or the engine framed it."""
    made = operation.framing(Call(operation, "m", True, True), "1", 0, revision)
    data = made.opening() + made.text("a") + made.chunk(b'{"choices":[]}') + made.closing("stop")
    *chunks, _ = events(data + made.ending(USAGE))
    limited = RateLimitExceeded("No more.")
    answers = [made.whole("a", "stop", USAGE), made.response(b'{"choices":[]}', None)]
    answers.append(made.response(b'{"choices":[]}', limited))
    for body in (*chunks, *map(json.loads, answers)):
        found = {
            name: body[name] for name in ("service_tier", "system_fingerprint") if name in body
        }
        assert found == told


def test_a_chat_that_waits_behind_others_says_so() -> None:
    call = CHAT.parse(chat(service_tier="flex"))
    assert json.loads(framing_of(call).whole("a", "stop", USAGE))["service_tier"] == "flex"


VLLM_SAYS = {"index": 0, "stop_reason": "x", "token_ids": None, "prompt_logprobs": None}
CALL_MADE = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def conformed(operation: Operation, **choice: Any) -> dict[str, Any]:
    made = VLLM_SAYS | choice
    operation.conform(made)
    return made


def test_a_message_has_the_same_fields_whatever_was_asked_for() -> None:
    empty: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    nothing = {"audio": None, "function_call": None, "reasoning": None, "annotations": None}
    message = empty | nothing | {"tool_calls": []}
    shown = empty | {"annotations": []}
    ended = {"index": 0, "logprobs": None, "finish_reason": None}
    assert conformed(CHAT, message=message) == ended | {"message": shown}
    told = {"reasoning": "Hm.", "content": "Yes.", "tool_calls": [CALL_MADE]}
    assert conformed(CHAT, message=message | told)["message"] == shown | told
    assert conformed(CHAT, message=message)["message"].keys() == CHAT.choice("a")["message"].keys()


def test_a_delta_has_what_it_adds() -> None:
    said: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    delta = said | {"reasoning": None}
    made = conformed(CHAT, delta=delta, finish_reason="stop", logprobs=None)
    shown = {"role": "assistant", "content": ""}
    assert made == {"index": 0, "delta": shown, "finish_reason": "stop", "logprobs": None}
    for role in ("user", "assistant"):  # vLLM's is that of the last message if none follows it
        told = {"role": role, "content": "a"}
        assert conformed(CHAT, delta=told)["delta"]["role"] == "assistant"
        assert conformed(CHAT, message=told)["message"]["role"] == "assistant"
    assert conformed(CHAT, delta={}, logprobs={"content": []})["logprobs"] == {
        "content": [],
        "refusal": None,
    }


def test_a_completions_choice_has_what_openais_have() -> None:
    assert conformed(COMPLETION, text="a", finish_reason="length") == {
        "index": 0,
        "text": "a",
        "logprobs": None,
        "finish_reason": "length",
    }


def test_what_was_asked_of_vllm_stays_in_a_choice() -> None:
    asked = {"token_ids": [], "prompt_token_ids": [1], "prompt_logprobs": [None]}
    assert conformed(COMPLETION, text="a", **asked).items() >= asked.items()


@pytest.mark.parametrize("operation", [CHAT, COMPLETION])
def test_a_whole_answer(operation: Operation) -> None:
    body = json.loads(framing_of(Call(operation, "m")).whole("hi", "length", USAGE))
    choice = body["choices"][0]
    assert choice["finish_reason"] == "length"
    assert (choice["message"]["content"] if operation is CHAT else choice["text"]) == "hi"
    assert body["usage"]["prompt_tokens"] == 10


def test_the_error_shape() -> None:
    body = json.loads(OPENAI.body(InvalidRequest("no good", param="n")))
    assert body == {
        "error": {
            "message": "no good",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_request",
        }
    }


def test_an_error_in_mid_stream_never_looks_like_the_end() -> None:
    (event,) = events(OPENAI.event(InferenceError("gone")))
    assert event["error"]["message"] == "gone"


def test_each_error_class_has_a_code_of_its_own() -> None:
    def family(root: type[InferenceError]) -> list[type[InferenceError]]:
        return [root, *(one for child in root.__subclasses__() for one in family(child))]

    assert sorted(BY_CODE) == sorted(kind.code for kind in family(InferenceError))
    for kind in family(InferenceError):
        assert kind().message
        assert 400 <= kind.http_status < 600
