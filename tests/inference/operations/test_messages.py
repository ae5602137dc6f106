"""Anthropic's API: how a request is read, and how a chat's answer is written; no engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from inference.errors import (
    BY_CODE,
    ContextLengthExceeded,
    EngineLost,
    InferenceError,
    InsufficientQuota,
    InvalidRequest,
    Overloaded,
    RateLimitExceeded,
)
from inference.link.accounts import Usage
from inference.link.workload import Workload
from inference.operations.bodies.beginnings import MAX_MARKS
from inference.operations.chat import CHAT
from inference.operations.error_shapes import ANTHROPIC
from inference.operations.messages.messages import COUNT_TOKENS, MESSAGES, MessagesCall
from inference.operations.operation import Call, Framing, PlainPrompt
from inference.operations.registry import OPERATIONS
from tests.document.sdk_types import faults
from tests.inference.operations.chats import answer
from tests.inference.operations.examples import messages

pytestmark = pytest.mark.pure

USAGE = Usage(10, 4, 7, 2)
TOOL: dict[str, Any] = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
USE: dict[str, Any] = {"type": "tool_use", "id": "1", "name": "now", "input": {"a": 1}}
PICTURE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
_event: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def parse(**fields: Any) -> Call:
    return MESSAGES.parse(json.dumps(messages(**fields)).encode())


def turn(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*blocks]}]


# --- requests ------------------------------------------------------------------------------------


def test_a_call_has_what_gateways_need() -> None:
    call = parse(stream=True, tools=[TOOL])
    assert (call.model, call.stream, call.workload.max_tokens) == ("base", True, 20)
    assert call.parsers == ("tool",)
    assert parse(tools=[TOOL], tool_choice={"type": "none"}).parsers == ()
    assert parse().parsers == ()


def test_turns_that_begin_alike_are_found() -> None:
    first = messages(content="Once", system="Be brief.")
    more = first | {"messages": first["messages"] + [{"role": "assistant", "content": "upon"}]}
    prefixes = [
        MESSAGES.parse(json.dumps(body).encode()).take_prefix("salt", "") for body in (first, more)
    ]
    one, two = [prefix.numbers() for prefix in prefixes if prefix is not None]
    assert len(one) == 2 and two[:2] == one and len(two) == 3


def numbers(*contents: Any) -> Sequence[int]:
    """The numbers of the beginnings of a conversation with these user turns."""
    turns = [{"role": "user", "content": content} for content in contents]
    call = MESSAGES.parse(json.dumps(messages(messages=turns)).encode())
    prefix = call.take_prefix("salt", "")
    assert prefix is not None
    return prefix.numbers()


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ({"type": "text", "text": "a"}, {"text": "b"}),
        ({"type": "thinking", "thinking": "a"}, {"thinking": "b"}),
        (USE, {"name": "then"}),
        (USE, {"input": {"a": 2}}),
        ({"type": "tool_result", "tool_use_id": "1", "content": "a"}, {"content": "b"}),
        (
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "a"}]},
            {"content": [{"type": "text", "text": "b"}]},
        ),
    ],
)
def test_turns_of_blocks_begin_alike_as_far_as_they_are_alike(
    one: dict[str, Any], another: dict[str, Any]
) -> None:
    first, same, other = (numbers("Once", [block]) for block in (one, dict(one), one | another))
    assert len(first) == len(other) == 2
    assert first == same and first[0] == other[0] and first[1] != other[1]
    assert numbers("Once", [{"type": "redacted_thinking"}, one])[0] == first[0]


def test_beginnings_of_many_turns_are_bounded() -> None:
    assert len(numbers(*["a"] * 3 * MAX_MARKS)) == MAX_MARKS


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"system": 7}, "system"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0]"),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "array"}}]},
            "tools[0].input_schema.type",
        ),
        ({"tool_choice": {"type": "any"}}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "must"}}, "tool_choice.type"),
        (
            {"output_config": {"format": {"schema": {"$ref": "#"}}}},
            "output_config.format.schema",
        ),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits",
        ),
        (
            {
                "context_management": {
                    "edits": [
                        {
                            "type": "clear_thinking_20251015",
                            "keep": {"type": "thinking_turns", "value": 1},
                        }
                    ]
                }
            },
            "context_management.edits",
        ),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "object", "minProperties": -1}}]},
            "tools[0].input_schema",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": turn(PICTURE)}, "messages[0].content[0]"),
        ({"messages": turn({"type": "text"})}, "messages[0].content[0].text"),
        ({"messages": turn({"type": "tool_result"})}, "messages[0].content[0].tool_use_id"),
        (
            {"messages": turn({"type": "tool_result", "tool_use_id": "1", "content": [PICTURE]})},
            "messages[0].content[0].content[0]",
        ),
        ({"system": [PICTURE]}, "system[0]"),
        ({"messages": "x"}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
    ],
)
@pytest.mark.parametrize("operation", [MESSAGES, COUNT_TOKENS])
def test_unserved_fields_are_refused(operation: Any, fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        operation.allowed(messages(**fields))
    assert caught.value.param == param


def test_an_engine_sees_only_served_fields() -> None:
    given: dict[str, Any] = {
        "tools": [TOOL],
        "system": "Be brief.",
        "stop_sequences": ["."],
        "top_p": 0,
    }
    kept = MESSAGES.allowed(messages(**given, cache_salt="x", priority=-1, top_k=None))
    body = messages(**given, top_k=1)
    del body["model"], body["top_p"]
    assert kept == body


def test_an_engine_sees_blocks_that_are_served() -> None:
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": "1"},
        {"type": "tool_result", "tool_use_id": "2", "content": "a"},
        {"type": "tool_result", "tool_use_id": "3", "content": [{"type": "text", "text": "a"}]},
    ]
    turns = turn(*results, USE, {"type": "redacted_thinking"})
    assert MESSAGES.allowed(messages(messages=turns))["messages"] == turns


def test_a_plain_prompt() -> None:
    body = messages(content=[{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}])
    assert MESSAGES.plain_prompt(body) == PlainPrompt("<user>Hello", "Hello")
    assert MESSAGES.plain_prompt(body | {"system": "Be brief."}).whole == (
        "<system>Be brief.<user>Hello"
    )


@pytest.mark.parametrize("edits", [[], [{"type": "clear_thinking_20251015", "keep": "all"}]])
def test_edits_that_change_nothing_are_answered(edits: list[Any]) -> None:
    """Claude Code sends them by default."""
    call = MESSAGES.parse(json.dumps(messages(context_management={"edits": edits})).encode())
    told: dict[str, Any] = {"applied_edits": []}
    made = MESSAGES.framing(call, "1", 0)
    assert json.loads(made.whole("Hi", "stop", USAGE))["context_management"] == told
    made = MESSAGES.framing(call, "1", 0)
    events = made.text("Hi") + made.closing("stop") + made.ending(USAGE)
    last = next(
        line for line in events.splitlines() if b'"message_delta"' in line and b"data" in line
    )
    assert json.loads(last.removeprefix(b"data: "))["context_management"] == told
    plain = MESSAGES.framing(parse(), "1", 0).whole("Hi", "stop", USAGE)
    assert "context_management" not in json.loads(plain)


def test_agents_are_told_in_words_that_they_know_that_a_prompt_is_too_long() -> None:
    error = ContextLengthExceeded.of("Too long.", 5000, 4096)
    told = MESSAGES.reworded(error)
    assert str(told) == "prompt is too long: 5000 tokens > 4096 maximum"
    assert isinstance(told, ContextLengthExceeded)
    for other in (ContextLengthExceeded("Too long."), EngineLost("Gone.")):
        assert MESSAGES.reworded(other) is other
    assert CHAT.reworded(error) is error
    assert str(OPERATIONS.reworded("messages", error)) == str(told)
    assert OPERATIONS.reworded("of next year", error) is error


def test_a_conversation_to_count_is_bounded() -> None:
    body = json.dumps(messages(content="a" * (1 << 20))).encode()
    with pytest.raises(InvalidRequest, match="at most 1048576"):
        COUNT_TOKENS.parse(body)


# --- answers -------------------------------------------------------------------------------------


def framing() -> Framing:
    return MESSAGES.framing(MessagesCall(MESSAGES, "m", workload=Workload(max_tokens=20)), "1", 0)


def chunk(reason: str | None = None, stop: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "stop_reason": stop}
    return json.dumps({"choices": [choice]}).encode()


def call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"index": index, "function": function} | ({"id": f"call_{index}"} if name else {})


def read(data: bytes) -> tuple[list[str], dict[str, Any]]:
    """The types of a stream's events, and the message that a client assembles from them."""
    types, blocks, message = [], list[dict[str, Any]](), dict[str, Any]()
    for part in data.decode().split("\n\n")[:-1]:
        name, _, text = part.partition("\ndata: ")
        assert not faults("messages", text.encode(), event=True)
        event = _event.validate_json(text)
        types.append(event.type)
        assert name == f"event: {event.type}"
        match event.type:
            case "message_start":
                message = event.message.to_dict()
            case "content_block_start":
                assert event.index == len(blocks)
                blocks.append(event.content_block.to_dict())
            case "content_block_delta":
                assert event.index == len(blocks) - 1
                for field, value in event.delta.to_dict().items():
                    if field != "type":
                        blocks[-1][field] = blocks[-1].get(field, "") + value
            case "message_delta":
                message |= event.delta.to_dict()
                message["usage"] |= event.usage.to_dict()
    message["content"] = blocks
    return types, message


def test_a_stream_of_text() -> None:
    made = framing()
    made.counted(10, 4)
    data = made.opening() + made.text('He"') + made.text("llo") + made.closing("length")
    types, message = read(data + made.ending(USAGE))
    assert types == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert message["content"] == [{"type": "text", "text": 'He"llo', "citations": []}]
    assert (message["id"], message["stop_reason"]) == ("msg-1", "max_tokens")
    usage = message["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (6, 4)
    assert usage["output_tokens"] == 7
    assert usage["output_tokens_details"] == {"thinking_tokens": 2}


def test_the_prompt_is_counted_from_the_beginning() -> None:
    made = framing()
    made.counted(10, 4)
    _, message = read(made.text("a"))
    assert message["usage"]["input_tokens"] == 6


def test_an_empty_stream_has_a_block() -> None:
    made = framing()
    types, message = read(made.closing("stop") + made.ending(USAGE))
    assert types[1:3] == ["content_block_start", "content_block_stop"]
    assert (message["content"][0]["text"], message["stop_reason"]) == ("", "end_turn")


def test_a_stream_of_thoughts_text_and_calls() -> None:
    made = framing()
    data = made.chunk(chunk(role="assistant", content=""))
    data += made.chunk(chunk(reasoning="Hm"))
    data += made.chunk(chunk(reasoning="m."))
    data += made.chunk(chunk(content="Let me see."))
    data += made.chunk(chunk(tool_calls=[call(0, "", "now")]))
    data += made.chunk(chunk(content=" "))
    data += made.chunk(chunk(tool_calls=[call(0, "{}"), call(1, '{"a":', "then")]))
    data += made.chunk(chunk(content="Done."))
    data += made.chunk(chunk("tool_calls", tool_calls=[call(1, "1}")]))
    types, message = read(data + made.closing("tool_calls") + made.ending(USAGE))
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "text"]
    thought, text, now, then, done = message["content"]
    assert thought["thinking"] == "Hmm." and thought["signature"]
    assert (text["text"], done["text"]) == ("Let me see.", "Done.")
    assert (now["id"], now["name"], now["partial_json"]) == ("call_0", "now", "{}")
    assert (then["id"], then["name"], then["partial_json"]) == ("call_1", "then", '{"a":1}')
    assert message["stop_reason"] == "tool_use"
    assert types.count("content_block_start") == types.count("content_block_stop") == 5


def test_a_stop_sequence_is_told() -> None:
    made = framing()
    data = made.chunk(chunk("stop", "END", content="a")) + made.closing("stop")
    _, message = read(data + made.ending(USAGE))
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


def whole(data: bytes) -> Message:
    assert not faults("messages", data)
    return Message.model_validate_json(data)


def test_a_whole_answer() -> None:
    plain = whole(framing().whole("hi", "stop", USAGE))
    assert (plain.content[0].text, plain.stop_reason) == ("hi", "end_turn")  # type: ignore[union-attr]
    function = {"name": "now", "arguments": '{"a": 1}'}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    full = whole(framing().response(answer(content=None, reasoning="Hm.", tool_calls=calls), None))
    assert [block.type for block in full.content] == ["thinking", "tool_use"]
    assert full.content[1].input == {"a": 1}  # type: ignore[union-attr]
    assert full.stop_reason == "tool_use"  # also if a call by name ended the chat with `stop`
    assert full.usage.to_dict() == plain.usage.to_dict()


def test_an_empty_whole_answer_has_a_block() -> None:
    (block,) = whole(framing().response(answer(content=""), None)).content
    assert block.to_dict() == {"type": "text", "text": "", "citations": []}


def test_a_call_that_a_limit_cut_has_no_arguments() -> None:
    function = {"name": "now", "arguments": '{"a": '}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    cut = whole(framing().response(answer("length", tool_calls=calls), None))
    assert cut.stop_reason == "max_tokens"
    assert cut.content[0].input == {}  # type: ignore[union-attr]


def test_the_limit_that_ended_an_answer_is_told() -> None:
    limited = RateLimitExceeded("enough")
    told = {"code": "rate_limit_exceeded", "message": "enough"}
    made = framing()
    _, message = read(made.text("a") + made.closing("length", limited) + made.ending(USAGE))
    assert message["finish_details"] == told
    for data in (
        framing().whole("a", "length", USAGE, limited),
        framing().response(answer("length", content="a"), limited),
    ):
        assert json.loads(data)["finish_details"] == told
        assert json.loads(data)["stop_reason"] == "max_tokens"


def test_what_vllm_says_of_a_choice() -> None:
    ended = {"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "END"}
    MESSAGES.conform(ended)
    assert ended["stop_reason"] == "END"
    by_token = {"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": 7}
    MESSAGES.conform(by_token)
    assert "stop_reason" not in by_token


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BY_CODE.values())
def test_errors_have_types_of_the_api(kind: type[InferenceError]) -> None:
    body = json.loads(ANTHROPIC.body(kind("no", param="n"), "req_1"))
    error = body.pop("error")
    assert body == {"type": "error", "request_id": "req_1"}
    assert error == {"type": error["type"], "message": "no", "code": kind.code, "param": "n"}
    assert error["type"].endswith(("_error", "request_too_large"))


def test_some_errors_have_types_of_their_own() -> None:
    def type_of(error: InferenceError) -> Any:
        return json.loads(ANTHROPIC.body(error))["error"]["type"]

    assert type_of(Overloaded()) == "overloaded_error"
    assert type_of(InsufficientQuota()) == "billing_error"
    assert type_of(InvalidRequest()) == "invalid_request_error"
    assert type_of(InferenceError()) == "api_error"


def test_an_error_in_mid_stream_is_an_event() -> None:
    event = ANTHROPIC.event(Overloaded("full"), "req_1").decode()
    name, data = event.removesuffix("\n\n").split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["message"] == "full"
