"""The Responses API: how a request is read, and how a chat's answer is written; no engine."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from llm_comply.schema import SpecLoader
from llm_comply.specs import __path__ as specs
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from inference.errors import EngineLost, InvalidRequest, RateLimitExceeded
from inference.link.accounts import Usage
from inference.operations.chat import CHAT
from inference.operations.operation import Call, PlainPrompt
from inference.operations.responses.call import ResponseCall
from inference.operations.responses.framing import ResponsesFraming
from inference.operations.responses.items import (
    joined,
    listed,
    listed_page,
    listing,
    made_id,
    shown,
    split,
)
from inference.operations.responses.responses import RESPONSES
from tests.document.sdk_types import faults
from tests.inference.operations.chats import answer

pytestmark = pytest.mark.pure

USAGE = Usage(10, 4, 7, 2)
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL: dict[str, Any] = {"type": "function", "name": "now", "parameters": PARAMETERS}
OTHER: dict[str, Any] = {"type": "function", "name": "then"}
CALLED = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
PICTURE = {"type": "input_image", "image_url": "http://127.0.0.1/x.png"}
ONLY_NOW = {
    "type": "allowed_tools",
    "mode": "required",
    "tools": [{"type": "function", "name": "now"}],
}
SCHEMA = {"type": "json_schema", "name": "x", "schema": PARAMETERS}
SHOWN = SCHEMA | {"description": None, "strict": False}
_event: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def body(input: Any = "Hi", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": input} | fields


def parse(input: Any = "Hi", **fields: Any) -> ResponseCall:
    return RESPONSES.parse(json.dumps(body(input, **fields)).encode())


def chat(input: Any = "Hi", **fields: Any) -> dict[str, Any]:
    """The fields that an engine sees."""
    return RESPONSES.allowed(body(input, **fields))


def said(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | fields


def text(type: str, said: str) -> dict[str, Any]:
    return {"type": type, "text": said}


def test_a_call_may_come_first() -> None:
    called, _ = chat([CALLED, RESULT])["messages"]
    assert called["content"] is None and called["tool_calls"][0]["id"] == "c1"


def test_prefixes_are_full_beyond_the_bound() -> None:
    items = [said("user", f"{i}") for i in range(2000)]
    assert parse(items).beginnings.full and not parse(items[:2]).beginnings.full


def test_choices_are_a_chats() -> None:
    ours, theirs = ({"index": 0, "logprobs": None, "message": {"content": "a"}} for _ in range(2))
    RESPONSES.conform(ours)
    CHAT.conform(theirs)
    assert ours == theirs
    assert CHAT.framing(Call(CHAT, "m", True), "1", 0).failed(EngineLost("gone")) == b""


# --- requests ------------------------------------------------------------------------------------


def test_a_call_has_what_gateways_need() -> None:
    call = parse(stream=True, tools=[TOOL], max_output_tokens=20, service_tier="flex")
    assert (call.model, call.stream, call.workload.max_tokens, call.flex) == ("m", True, 20, True)
    assert (call.parsers, call.workload.choices, call.workload.logprobs) == (("tool",), 1, 0)
    assert parse(tools=[TOOL], tool_choice="none").parsers == parse().parsers == ()
    assert parse(include=["message.output_text.logprobs"], top_logprobs=3).workload.logprobs == 4
    assert parse(top_logprobs=3).workload.logprobs == 0


def test_items_that_begin_alike_are_found() -> None:
    turns = [said("user", "Once"), said("assistant", "upon"), CALLED, RESULT]
    first, more, other = [
        parse(items, instructions=instructions).take_prefix("salt", "")
        for items, instructions in ((turns[:1], "Be."), (turns, "Be."), (turns, "Do not."))
    ]
    assert first and more and other
    assert more.numbers()[: len(first.numbers())] == first.numbers()
    assert len(more.numbers()) == len(first.numbers()) + 3
    assert not {*more.numbers()} & {*other.numbers()}
    one, two = parse("Once").take_prefix("salt", ""), parse("Once").take_prefix("salt", "")
    assert one == two and one is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [7]}, "input[0]"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [said("tool", "x")]}, "input[0].role"),
        ({"input": [said("user", [PICTURE])]}, "input[0].content[0]"),
        ({"input": [said("user", [{"type": "input_text"}])]}, "input[0].content[0].text"),
        ({"input": [CALLED | {"name": None}]}, "input[0].name"),
        ({"input": [CALLED | {"arguments": "[" * 200}]}, "input[0].arguments"),
        ({"input": [RESULT | {"output": [PICTURE]}]}, "input[0].output[0]"),
        ({"input": [RESULT | {"output": None}]}, "input[0].output"),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
            "input[0].encrypted_content",
        ),
        ({"model": ""}, "model"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"include": ["everything"]}, "include[0]"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"reasoning": {"effort": "utmost"}}, "reasoning.effort"),
        ({"temperature": "hot"}, "temperature"),
        ({"truncation": "some"}, "truncation"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": SCHEMA | {"schema": {"$ref": "#"}}}}, "text.format.schema"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "namespace", "tools": [TOOL]}]}, "tools[1].name"),
        (
            {"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "web_search"}]}]},
            "tools[0].tools[0].type",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL | {"parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
        ({"tools": [TOOL | {"parameters": {"minProperties": -1}}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tools"),
        ({"tool_choice": {"type": "function", "name": "now"}}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "then"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": ONLY_NOW | {"tools": []}}, "tool_choice"),
        ({"tools": [OTHER], "tool_choice": ONLY_NOW}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"background": 1}, "background"),
        ({"background": True, "store": False}, "store"),
        ({"background": True, "stream": True}, "stream"),
        ({"conversation": {"id": 7}}, "conversation.id"),
        ({"conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
        ({"conversation": "c", "store": False}, "store"),
        ({"conversation": "c", "background": True}, "conversation"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**{"input": "Hi"} | fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": [said("user", [PICTURE])]}, "input[0].content[0]"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"instructions": 7}, "instructions"),
        ({"moderation": {"model": "x"}}, "moderation"),
    ],
)
def test_unserved_fields_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**{"input": "Hi"} | fields)
    assert caught.value.param == param


SPACE: dict[str, Any] = {"type": "namespace", "name": "mcp__clock", "tools": [TOOL, OTHER]}
NO_SEARCH = {"type": "web_search", "external_web_access": False}


def test_codex_sends_tools_in_namespaces_and_a_search_that_is_off() -> None:
    asked = parse(tools=[SPACE, TOOL, NO_SEARCH])
    names = ["mcp__clock__now", "mcp__clock__then", "now"]
    assert [tool["name"] for tool in asked.echoed["tools"]] == names
    assert asked.parsers == ("tool",)
    seen = chat(tools=[SPACE, TOOL, NO_SEARCH])
    assert [tool["function"]["name"] for tool in seen["tools"]] == names
    assert "tools" not in chat(tools=[NO_SEARCH]) and not parse(tools=[NO_SEARCH]).parsers
    assert parse(tools=[SPACE], tool_choice={"type": "function", "name": names[1]})


def test_a_call_of_a_namespace_is_answered_and_accepted_back_with_both_names() -> None:
    request = parse(tools=[SPACE, TOOL])
    flat = {"name": "mcp__clock__now", "arguments": "{}"}
    calls = [{"id": "c1", "type": "function", "function": flat}]
    made = RESPONSES.framing(request, "1", 0)
    (item,) = json.loads(made.response(answer("tool_calls", tool_calls=calls), None))["output"]
    assert (item["name"], item["namespace"]) == ("now", "mcp__clock")
    made = RESPONSES.framing(request, "1", 0)
    events = made.chunk(chunk("tool_calls", tool_calls=[call(0, "{}", "mcp__clock__now")]))
    _, streamed = read(events + made.closing("tool_calls") + made.ending(USAGE))
    told = streamed["output"][0]
    assert (told["name"], told["namespace"]) == ("now", "mcp__clock")
    (again,) = [one for one in chat([item, RESULT])["messages"] if one["role"] == "assistant"]
    assert again["tool_calls"][0]["function"]["name"] == "mcp__clock__now"
    (stored,) = shown(json.dumps(item).encode(), lambda kind, index: "x")
    assert stored["namespace"] == "mcp__clock"


def test_references_to_items_are_resolved_by_the_gateway() -> None:
    reference = {"type": "item_reference", "id": "msg_1"}
    assert parse([reference]).references and not parse([said("user", "Hi")]).references
    assert not parse("Hi").references
    with pytest.raises(InvalidRequest, match="`store` is `false`"):
        chat([reference])


def test_a_background_response_is_queued_and_refused_in_a_batch() -> None:
    call = parse(background=True)
    assert call.background and not parse(background=False).background
    with pytest.raises(InvalidRequest) as caught:
        call.check_as_line()
    assert caught.value.param == "background"
    call.echoed = {**call.echoed, "background": True}
    data = RESPONSES.framing(call, "1", 7).queued()
    assert not faults("responses", data)
    queued = json.loads(data)
    assert (queued["id"], queued["status"], queued["output"]) == ("resp_1", "queued", [])
    call.echoed = queued | {"model": "adapter"}  # as when it is continued in the background
    ended = json.loads(RESPONSES.framing(call, "1", 9).whole("Hi", "stop", USAGE))
    assert (ended["created_at"], ended["status"], ended["model"]) == (7, "completed", "adapter")
    assert ended["background"] and ended["usage"]


def test_a_conversation_has_an_id_and_is_refused_in_a_batch() -> None:
    for given in ("conv_1", {"id": "conv_1"}):
        call = parse(conversation=given)
        assert call.conversation == "conv_1"
        with pytest.raises(InvalidRequest) as caught:
            call.check_as_line()
        assert caught.value.param == "conversation"
    assert not parse().conversation


def test_store_and_previous_response_id_are_parsed() -> None:
    assert parse().store and not parse(store=False).store
    assert (
        parse(previous_response_id="resp_1").previous_response_id == "resp_1"
        and not parse().previous_response_id
    )
    assert parse(previous_response_id="resp_1").continues and parse(conversation="c").continues
    assert not parse().continues


def test_an_engine_sees_a_chat() -> None:
    given: dict[str, Any] = {
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": SCHEMA | {"strict": True, "description": None}},
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "top_logprobs": 2,
    }
    ignored = {"cache_salt": "x", "priority": -1, "max_tokens": 3, "n": 4, "metadata": {"a": "b"}}
    assert chat(**given, **ignored) == {
        "messages": [said("system", "Be brief."), said("user", "Hi")],
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_k": 1,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": PARAMETERS, "strict": True},
        },
        "logprobs": True,
        "top_logprobs": 2,
    }
    assert chat(text={"format": {"type": "json_object"}})["response_format"] == {
        "type": "json_object"
    }
    assert chat(truncation="auto")["truncation"] == "auto"
    assert "truncation" not in chat(truncation="disabled")
    assert "response_format" not in chat(text={"format": {"type": "text"}})
    switched = chat(chat_template_kwargs={"enable_thinking": False, "tools": "x"})
    assert switched["chat_template_kwargs"] == {"enable_thinking": False}


def test_an_engine_sees_tools_as_chats_have_them() -> None:
    seen = chat(tools=[TOOL | {"strict": True}, OTHER], parallel_tool_calls=False)
    now, then = seen["tools"]
    assert now["function"] == {"name": "now", "parameters": PARAMETERS, "strict": True}
    assert then["function"]["name"] == "then" and then["function"]["parameters"]
    assert seen["parallel_tool_calls"] is False and "tool_choice" not in seen
    named = chat(tools=[TOOL, OTHER], tool_choice={"type": "function", "name": "then"})
    assert named["tool_choice"] == {"type": "function", "function": {"name": "then"}}
    few = chat(tools=[TOOL, OTHER], tool_choice=ONLY_NOW)
    assert ([tool["function"]["name"] for tool in few["tools"]], few["tool_choice"]) == (
        ["now"],
        "required",
    )
    assert not {"tools", "tool_choice"} & chat(tools=[], tool_choice="auto").keys()


def test_the_bound_of_the_agent_goes_first() -> None:
    raw = json.dumps(body(max_output_tokens=9, max_tokens=3, n=5)).encode()
    assert RESPONSES.max_tokens(read := RESPONSES.read(raw, 4)) == 4
    assert RESPONSES.max_tokens(RESPONSES.allowed(read)) == 4
    assert RESPONSES.max_tokens(RESPONSES.read(raw, None)) == 9
    assert RESPONSES.max_tokens(body(max_tokens=3)) is None


def messages(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chat([*items], **fields)["messages"]
    return found


def test_what_the_assistant_did_is_one_message() -> None:
    thoughts = {"type": "reasoning", "content": [text("reasoning_text", "Hm.")], "summary": []}
    words = said("assistant", [text("output_text", "Let "), text("output_text", "me see.")])
    other = CALLED | {"call_id": "c2", "name": "then"}
    question, first, result, second = messages(
        said("user", "When?"), thoughts, words, CALLED, other, RESULT, said("assistant", "Noon.")
    )
    assert (question["role"], result["role"]) == ("user", "tool")
    assert (first["reasoning"], first["content"]) == ("Hm.", "Let me see.")
    assert [call["id"] for call in first["tool_calls"]] == ["c1", "c2"]
    assert first["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    assert result == {"role": "tool", "content": "noon", "tool_call_id": "c1"}
    assert second == said("assistant", "Noon.")


def test_new_thoughts_and_a_second_text_begin_a_message() -> None:
    summary = {"type": "reasoning", "summary": [text("summary_text", "So.")]}
    found = messages(said("assistant", "a"), said("assistant", "b"), summary, CALLED)
    assert [(one["content"], one.get("reasoning")) for one in found] == [
        ("a", None),
        ("b", None),
        (None, "So."),
    ]
    assert found[2]["tool_calls"]
    empty = {"type": "reasoning", "summary": []}
    assert len(messages(said("user", "a"), empty, said("assistant", "b"))) == 2


def test_instructions_and_first_words_of_the_system_are_one_text() -> None:
    developer = said("developer", [text("input_text", "Be kind.")], type="message")
    found = messages(developer, said("user", "Hi"), said("system", "x"), instructions="Be brief.")
    assert [one["role"] for one in found] == ["system", "user", "system"]
    assert found[0]["content"] == "Be brief.\n\nBe kind."


def test_parts_are_left_for_the_template_to_join() -> None:
    parts = [text("input_text", "a"), text("input_text", "b")]
    (found,) = messages(said("user", parts))
    assert found["content"] == [text("text", "a"), text("text", "b")]
    refused = said("assistant", [{"type": "refusal", "refusal": "No."}])
    assert messages(refused)[0]["content"] == "No."
    assert messages(RESULT | {"output": parts[:1]})[0]["content"] == "a"


def test_a_plain_prompt() -> None:
    assert RESPONSES.plain_prompt(chat("Hello")) == PlainPrompt("<user>Hello", "Hello")


# --- answers -------------------------------------------------------------------------------------


def framing(**fields: Any) -> ResponsesFraming:
    made = RESPONSES.framing(parse(stream=True, **fields), "1", 5)
    assert isinstance(made, ResponsesFraming)
    return made


def chunk(reason: str | None = None, logprobs: Any = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": logprobs}
    return json.dumps({"choices": [choice]}).encode()


def call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"index": index, "function": function} | ({"id": f"call_{index}"} if name else {})


def logprobs(*tokens: str) -> dict[str, Any]:
    of_token = [
        {"token": one, "logprob": -0.5, "bytes": [97], "top_logprobs": []} for one in tokens
    ]
    return {"content": of_token, "refusal": None}


def read(data: bytes) -> tuple[list[str], dict[str, Any]]:
    """The types of a stream's events, and the last event's response. Checks that the SDK assembles
    the same items from the other events."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    types: list[str] = []
    *parts, done, rest = data.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    for number, part in enumerate(parts):
        name, _, text = part.partition("\ndata: ")
        assert not faults("responses", text.encode(), event=True), text
        event = _event.validate_json(text)
        assert event.sequence_number == number
        assert name == f"event: {event.type}"
        types.append(event.type.removeprefix("response."))
        last: dict[str, Any] = json.loads(text)
        state.handle_event(event)
    response: dict[str, Any] = last["response"]
    items = [
        state._completed_output.get(i) or item for i, item in sorted(state._output_items.items())
    ]
    assert [item.id for item in items] == [item["id"] for item in response["output"]]  # type: ignore[union-attr]
    return types, response


LIFE = ["created", "in_progress"]
MESSAGE = ["output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
           "output_text.done", "content_part.done", "output_item.done"]  # fmt: skip


def test_a_stream_of_text() -> None:
    made = framing()
    made.counted(10, 4)  # says nothing of it before the end
    data = made.opening()
    for text in ('He"', "llo"):
        made.generated(1)
        data += made.text(text)
    types, response = read(data + made.closing("stop") + made.ending(USAGE))
    assert types == [*LIFE, *MESSAGE, "completed"]
    (item,) = response["output"]
    assert (item["id"], item["status"], item["role"]) == ("msg_1_0", "completed", "assistant")
    part = {"type": "output_text", "text": 'He"llo', "annotations": [], "logprobs": []}
    assert item["content"] == [part]
    assert (response["id"], response["status"], response["error"]) == ("resp_1", "completed", None)
    assert response["created_at"] == 5 < response["completed_at"]
    assert response["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 17,
    }


def test_a_cut_stream_is_incomplete() -> None:
    made = framing(max_output_tokens=7)
    data = made.opening() + made.text("a") + made.text("b") + made.closing("length")
    types, response = read(data + made.ending(USAGE))
    assert types == [*LIFE, *MESSAGE, "incomplete"]
    assert (response["status"], response["completed_at"]) == ("incomplete", None)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["max_output_tokens"] == 7


def test_an_empty_stream_has_a_message() -> None:
    made = framing()
    types, response = read(made.closing("stop") + made.ending(USAGE))
    assert types == [*LIFE, *(one for one in MESSAGE if "delta" not in one), "completed"]
    assert response["output"][0]["content"][0]["text"] == ""


def test_a_stream_of_thoughts_text_and_calls() -> None:
    made = framing(tools=[TOOL, OTHER])
    data = made.chunk(chunk(role="assistant", content=""))
    data += made.chunk(chunk(reasoning="Hm"))
    data += made.chunk(chunk(reasoning="m."))
    data += made.chunk(chunk(content="Let me see."))
    data += made.chunk(chunk(tool_calls=[call(0, "", "now")]))
    data += made.chunk(chunk(content=" "))
    data += made.chunk(chunk(tool_calls=[call(0, "{}"), call(1, '{"a":', "then")]))
    data += made.chunk(chunk(content="Done."))
    data += made.chunk(chunk("tool_calls", tool_calls=[call(1, "1}")]))
    types, response = read(data + made.closing("tool_calls") + made.ending(USAGE))
    thoughts, words, now, then, done = response["output"]
    assert thoughts["id"] == "rs_1_0" and thoughts["summary"] == []
    assert thoughts["content"] == [text("reasoning_text", "Hmm.")]
    assert [one["content"][0]["text"] for one in (words, done)] == ["Let me see.", "Done."]
    assert (now["id"], now["call_id"], now["name"]) == ("fc_1_2", "call_0", "now")
    assert [one["arguments"] for one in (now, then)] == ["{}", '{"a":1}']
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert response["status"] == "completed"
    for event in ("reasoning_text", "function_call_arguments"):
        assert types.index(f"{event}.delta") < types.index(f"{event}.done")


def test_a_call_that_was_cut_is_incomplete() -> None:
    made = framing(tools=[TOOL])
    data = made.chunk(chunk(tool_calls=[call(0, '{"a"', "now")])) + made.closing("length")
    types, response = read(data + made.ending(USAGE))
    assert types[-1] == "incomplete"
    (item,) = response["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", '{"a"')


def test_logprobs_come_with_their_text() -> None:
    made = framing(include=["message.output_text.logprobs"])
    data = made.chunk(chunk(role="assistant", content=""))
    # A token that is only part of a character has no text yet.
    for delta in ({"content": "a"}, {"content": ""}, {}, {"content": "b"}):
        data += made.chunk(chunk(logprobs=logprobs(delta.get("content", "")), **delta))
    data += made.chunk(chunk("stop", logprobs=logprobs("")))
    types, response = read(data + made.closing("stop") + made.ending(USAGE))
    found = response["output"][0]["content"][0]["logprobs"]
    assert found == logprobs("a", "", "", "b", "")["content"]
    assert types.count("output_text.delta") == 3
    assert response["output"][0]["content"][0]["text"] == "ab"


def test_a_failed_stream_ends_with_its_output_and_the_error() -> None:
    made = framing()
    data = made.opening() + made.text("a") + made.failed(EngineLost("gone"))
    types, response = read(data)
    assert types[-1] == "failed"
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "gone", "type": "engine_lost"}
    (item,) = response["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "a")
    types, response = read(framing().failed(RateLimitExceeded("enough")))
    assert types == [*LIFE, "failed"]
    assert (response["output"], response["error"]["code"]) == ([], "rate_limit_exceeded")
    types, response = read(framing().failed(InvalidRequest("no")))
    assert response["error"]["code"] == "invalid_prompt"


def whole(data: bytes) -> Response:
    assert not faults("responses", data)
    return Response.model_validate_json(data)


def test_a_whole_answer() -> None:
    plain = whole(framing().whole("hi", "stop", USAGE))
    assert (plain.output_text, plain.status) == ("hi", "completed")
    function = {"name": "now", "arguments": '{"a": 1}'}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    full = whole(framing().response(answer(content=None, reasoning="Hm.", tool_calls=calls), None))
    thoughts, called = full.output
    assert thoughts.type == "reasoning" and thoughts.content
    assert thoughts.content[0].text == "Hm."
    assert called.type == "function_call"
    assert (called.call_id, called.name, called.arguments) == ("call_1", "now", '{"a": 1}')
    assert full.usage == plain.usage
    scored = framing().response(answer(content="ab", logprobs=logprobs("a", "b")), None)
    message: Any = whole(scored).output[0]
    assert [one.token for one in message.content[0].logprobs] == ["a", "b"]


def test_a_whole_answer_is_what_its_stream_would_be() -> None:
    called = {"name": "now", "arguments": "{}"}
    calls = [{"id": "call_0", "type": "function", "function": called}]
    at_once = framing().response(
        answer("tool_calls", reasoning="Hm.", content="So.", tool_calls=calls), None
    )
    made = framing()
    data = made.chunk(chunk(reasoning="Hm.")) + made.chunk(chunk(content="So."))
    data += made.chunk(chunk("tool_calls", tool_calls=[call(0, "{}", "now")]))
    _, streamed = read(data + made.closing("tool_calls") + made.ending(USAGE))
    assert json.loads(at_once)["output"] == streamed["output"]


def test_an_empty_whole_answer_has_a_message() -> None:
    nothing = whole(framing().response(answer("length", content=None), None))
    (item,) = nothing.output
    assert item.type == "message" and item.status == "incomplete"
    assert nothing.output_text == ""


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")  # the suite does
def test_answers_and_events_are_as_open_responses_has_them() -> None:
    """Except for reasoning, whose events have OpenAI's names, and schemas, which must be null
    there."""
    loader = SpecLoader(f"{specs[0]}/openresponses.json")
    asked: dict[str, Any] = {"tools": [TOOL, OTHER], "tool_choice": ONLY_NOW}
    made = framing(**asked, include=["message.output_text.logprobs"])
    data = made.chunk(chunk(content="Let me see.", logprobs=logprobs("Let")))
    data += made.chunk(chunk(tool_calls=[call(0, "", "now")]))
    data += made.chunk(chunk("tool_calls", tool_calls=[call(0, "{}")]))
    data += made.closing("tool_calls") + made.ending(USAGE) + framing().failed(InvalidRequest())
    events = [json.loads(part.rpartition(b"data: ")[2]) for part in data.split(b"\n\n")
              if part.startswith(b"event: ")]  # fmt: skip
    assert len({event["type"] for event in events}) == 12
    for event in events:
        assert not loader.validate_sse_event(event["type"], event)
    body = json.loads(framing(**asked).whole("a", "length", USAGE))
    assert not loader.validate(body, "ResponseResource")


def test_the_limit_that_ended_an_answer_is_told() -> None:
    limited = RateLimitExceeded("enough")
    told = {"code": "rate_limit_exceeded", "message": "enough"}
    made = framing()
    data = made.opening() + made.text("a") + made.closing("stop", limited) + made.ending(USAGE)
    types, response = read(data)
    assert (types[-1], response["finish_details"]) == ("incomplete", told)
    for data in (
        framing().whole("a", "length", USAGE, limited),
        framing().response(answer("length", content="a"), limited),
    ):
        assert json.loads(data)["finish_details"] == told
        assert json.loads(data)["status"] == "incomplete"


def test_the_answer_repeats_what_was_asked_for() -> None:
    given: dict[str, Any] = {
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "max_tool_calls": 2,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "x",
        "reasoning": {"effort": "low", "summary": None},
        "safety_identifier": "y",
        "service_tier": "flex",
        "temperature": 0.0,
        "text": {"format": SHOWN, "verbosity": "medium"},
        "tool_choice": ONLY_NOW,
        "tools": [TOOL | {"description": None, "strict": True}],
        "top_logprobs": 3,
        "top_p": 0.5,
        "truncation": "auto",
    }
    shown = json.loads(framing(**given, store=True).whole("a", "stop", USAGE))
    whole(json.dumps(shown).encode())
    assert {name: shown[name] for name in given} == given
    assert shown["store"] is False
    plain = json.loads(framing().whole("a", "stop", USAGE))
    assert plain.keys() == shown.keys()
    assert (plain["temperature"], plain["service_tier"], plain["tools"]) == (1.0, "default", [])
    assert (plain["tool_choice"], plain["text"]) == ("auto", {"format": {"type": "text"}})
    named = framing(tools=[TOOL], tool_choice={"type": "function", "name": "now"})
    shown = json.loads(named.whole("a", "stop", USAGE))
    assert shown["tool_choice"] == {"type": "function", "name": "now"}


def test_echoed_fields_do_not_keep_the_body_alive() -> None:
    raw = json.dumps(body(tools=[TOOL], text={"format": SCHEMA}, metadata={"a": "b"})).encode()
    before = sys.getrefcount(raw)
    call = RESPONSES.parse(raw)
    assert call.take_body() is raw
    assert call.echoed["tools"] and sys.getrefcount(raw) == before


# --- items as they are stored and listed ---------------------------------------------------------

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
GIVEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "text": (
        "Hello",
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
    ),
    "parts": (
        [{"role": "system", "content": [{"type": "input_text", "text": "Be brief."}]}],
        {"role": "system", "content": [{"type": "input_text", "text": "Be brief."}]},
    ),
    "answer": (
        [{"role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}],
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}],
        },
    ),
    "refusal": (
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]}],
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]},
    ),
    "call": ([CALL], CALL),
    "result": (
        [{"type": "function_call_output", "call_id": "c", "output": "4"}],
        {"type": "function_call_output", "call_id": "c", "output": "4"},
    ),
    "result in parts": (
        [{
            "type": "function_call_output", "call_id": "c",
            "output": [{"type": "input_text", "text": "4"}],
        }],
        {"call_id": "c", "output": [{"type": "input_text", "text": "4"}]},
    ),
    "thoughts": (
        [{
            "type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "t"}],
        }],
        {
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "t"}],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("given", GIVEN)
def test_items_of_an_input_are_listed_as_openai_does(given: str) -> None:
    items, expected = GIVEN[given]
    said = json.dumps(items, indent=1).encode()
    (item,) = shown(listed(said), lambda kind, place: f"{kind}-{place}")
    assert item.items() >= expected.items() and item["status"] == "completed"
    assert item["id"] == expected.get("id", f"{item['type']}-0")


def test_items_are_listed_page_by_page() -> None:
    items = [{"id": str(number)} for number in range(3)]
    assert listing(items, {}, "list") == listed_page(items[::-1])
    page = listing(items, {"order": "asc", "limit": "1", "after": "0"}, "list")
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("1", "1", True)
    empty = listing(items, {"after": "0"}, "list")
    assert (empty["data"], empty["first_id"], empty["last_id"]) == ([], None, None)
    for query in ({"order": "up"}, {"limit": "0"}, {"limit": "x"}, {"after": "7"}):
        with pytest.raises(InvalidRequest) as caught:
            listing(items, query, "list")
        assert caught.value.param in query


def test_items_are_told_apart() -> None:
    assert [*map(bytes, split(b'{"a":1},{"b":2}'))] == [b'{"a":1}', b'{"b":2}']
    assert split(b"") == []


def test_lists_of_items_become_one() -> None:
    turns = [listed(json.dumps(one).encode()) for one in ("Hello", [], [CALL], None)]
    ids = [item["id"] for item in shown(joined(*turns), lambda kind, place: f"{kind}-{place}")]
    assert ids == ["message-0", "fc_1"]


@pytest.mark.parametrize(
    ("kind", "id"),
    [
        ("message", "msg_1a_in_2"),
        ("reasoning", "rs_1a_in_2"),
        ("function_call", "fc_1a_in_2"),
        ("function_call_output", "fco_1a_in_2"),
    ],
)
def test_the_id_of_an_item_without_one_tells_its_kind_request_and_place(kind: str, id: str) -> None:
    assert made_id(kind, "1a", 2) == id
