"""Operations that an engine answers with its tokenizer alone, tested without an engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.agent.engines.synthetic.tokens import Tokenizer
from inference.errors import InvalidRequest
from inference.interfaces.limiter import ReservationRequest
from inference.link.accounts import Usage
from inference.link.workload import Workload
from inference.operations.estimate import Estimate
from inference.operations.instant import InstantOperation
from inference.operations.messages.messages import COUNT_TOKENS
from inference.operations.operation import Call, PlainPrompt
from inference.operations.registry import OPERATIONS
from inference.operations.responses.call import ResponseCall
from inference.operations.responses.input_tokens import INPUT_TOKENS
from inference.operations.responses.responses import RESPONSES
from inference.operations.tokens import DETOKENIZE, TOKENIZE
from tests.inference.operations.examples import EXAMPLES, SAID

pytestmark = pytest.mark.pure

INSTANT = [one for one in OPERATIONS if isinstance(one, InstantOperation)]
TOKENIZER = Tokenizer(2048)
HELLO = [{"role": "user", "content": "Hello"}]


def parse(operation: InstantOperation, **fields: Any) -> Call:
    return operation.parse(json.dumps({"model": "m"} | fields).encode())


@pytest.mark.parametrize("operation", INSTANT, ids=lambda one: one.name)
def test_it_reserves_nothing_and_waits_as_its_text_would(operation: InstantOperation) -> None:
    call = operation.parse(json.dumps(EXAMPLES[operation.name].body("m")).encode())
    assert (call.model, call.stream, call.workload.max_tokens) == ("m", False, 0)
    assert operation.estimate(call, 7, 2048) == Estimate(
        Workload(prompt_tokens=7, max_tokens=0), ReservationRequest(0, 0, 0), grows=False
    )
    assert operation.bound(call, 0) is None
    assert operation.plain_prompt({}) == PlainPrompt("", "")


@pytest.mark.parametrize("operation", INSTANT, ids=lambda one: one.name)
def test_its_answer_is_what_the_engine_says(operation: InstantOperation) -> None:
    framing = operation.framing(parse(TOKENIZE, prompt="x"), "1", 0)
    framing.counted(10, 4)  # has no effect
    assert framing.response(b'{"a":1}', None) == b'{"a":1}'
    assert framing.whole("{}", "stop", Usage()) == framing.text("{}") == framing.chunk(b"{}")
    assert framing.opening() + framing.closing("stop") + framing.ending(Usage()) == b""


def test_a_choice_of_vllms_stays_as_it_is() -> None:
    choice = {"index": 0, "text": "a", "stop_reason": 7}
    TOKENIZE.conform(choice)
    assert choice == {"index": 0, "text": "a", "stop_reason": 7}


def answer(operation: InstantOperation, **fields: Any) -> dict[str, Any]:
    return operation.plain_answer(operation.allowed({"model": "m"} | fields), TOKENIZER)


def test_a_text_as_tokens_and_back() -> None:
    made = answer(TOKENIZE, prompt=SAID)
    assert made["count"] == len(made["tokens"]) == -(-len(SAID) // 4)
    assert (made["max_model_len"], made["token_strs"]) == (2048, None)
    assert answer(DETOKENIZE, tokens=made["tokens"]) == {"prompt": SAID}
    assert "".join(answer(TOKENIZE, prompt="Héllo", return_token_strs=True)["token_strs"]) == (
        "Héllo"
    )


def test_a_chat_as_tokens() -> None:
    made = answer(TOKENIZE, messages=HELLO)
    assert answer(DETOKENIZE, tokens=made["tokens"]) == {"prompt": "<user>Hello"}
    counted = answer(COUNT_TOKENS, messages=HELLO, max_tokens=9)
    assert counted == {"input_tokens": made["count"]}


CALL = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
FUNCTION = {"type": "function", "name": "now"}


def test_a_response_is_counted_as_the_chat_that_it_is() -> None:
    asked: dict[str, Any] = {"input": SAID, "instructions": "Rhyme."}
    chat = RESPONSES.allowed({"model": "m"} | asked)
    made = answer(TOKENIZE, messages=chat["messages"])
    assert answer(INPUT_TOKENS, **asked, max_output_tokens=9, truncation="auto") == {
        "object": "response.input_tokens",
        "input_tokens": made["count"],
    }
    given = {"tools": [FUNCTION], "tool_choice": "required", "reasoning": {"effort": "low"}}
    switches = {"chat_template_kwargs": {"enable_thinking": False}}
    seen = INPUT_TOKENS.allowed({"input": [CALL], "text": {}} | given | switches)
    assert seen == RESPONSES.allowed({"input": [CALL]} | given | switches)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"input": SAID, "text": {"format": {"type": "text"}}}, {}),
        ({"previous_response_id": "resp_1"}, {"previous_response_id": "resp_1"}),
        ({"conversation": "conv_1"}, {"conversation": "conv_1"}),
        ({"input": [], "conversation": {"id": "conv_1"}}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, {"references": True}),
        ({"input": [CALL], "tools": [FUNCTION]}, {"parsers": ("tool",)}),
        ({"input": [CALL], "tools": [FUNCTION], "tool_choice": "none"}, {}),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id"),
        ({"instructions": SAID}, "input"),
        ({"input": SAID, "model": ""}, "model"),
        ({"input": SAID, "text": {"verbosity": "high"}}, "text.verbosity"),
        ({"input": SAID, "tool_choice": "required"}, "tools"),
        ({"input": SAID, "instructions": "x" * (1 << 20)}, "input"),
        ({"input": [{"role": "user", "content": "x" * (1 << 20)}]}, "input"),
        ({"input": SAID, "truncation": "front"}, "truncation"),
    ],
)
def test_what_a_count_needs_is_read_and_the_rest_refused(
    fields: dict[str, Any], expected: dict[str, Any] | str
) -> None:
    """`expected`: what is not as in a plain call, or the field that is wrong."""
    if isinstance(expected, str):
        with pytest.raises(InvalidRequest) as caught:
            parse(INPUT_TOKENS, **fields)
        assert caught.value.param == expected
        return
    call = parse(INPUT_TOKENS, **fields)
    assert isinstance(call, ResponseCall) and not call.store
    plain: dict[str, Any] = {"references": False, "parsers": (), "conversation": ""}
    plain["previous_response_id"] = ""
    assert {name: getattr(call, name) for name in plain} == plain | expected


def test_a_style_that_would_change_the_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="`personality` is not supported"):
        INPUT_TOKENS.allowed({"input": SAID, "personality": "friendly"})


def test_an_engine_sees_only_served_fields() -> None:
    fields = {"messages": HELLO, "chat_template": "x", "chat_template_kwargs": {"x": 1}}
    assert TOKENIZE.allowed(fields) == {"messages": HELLO}
    switched = fields | {"chat_template_kwargs": {"enable_thinking": False}}
    assert TOKENIZE.allowed(switched)["chat_template_kwargs"] == {"enable_thinking": False}
    tool = {"type": "function", "function": {"name": "f"}}
    (kept,) = TOKENIZE.allowed({"messages": HELLO, "tools": [tool]})["tools"]
    assert kept["function"]["parameters"]["type"] == "object"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": HELLO}, "prompt"),
        ({"prompt": "x" * (1 + (1 << 20))}, "prompt"),
        ({"messages": [{"role": "user", "content": "x" * (1 << 20)}]}, "messages"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": "x", "tools": [{}]}, "tools[0].function"),
    ],
)
def test_a_text_of_the_wrong_type_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(TOKENIZE, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize("tokens", [None, "x", 7, {}, [1] * ((1 << 18) + 1)])
def test_tokens_of_the_wrong_type_are_refused(tokens: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(DETOKENIZE, tokens=tokens)
    assert caught.value.param == "tokens"


@pytest.mark.parametrize("tokens", [None, [1, "x"], [-1], [True], [1.5]])
def test_engines_get_tokens_alone(tokens: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DETOKENIZE.allowed({"tokens": tokens})
    assert caught.value.param == "tokens"
    assert DETOKENIZE.allowed({"tokens": []}) == {"tokens": []}


def test_a_token_of_another_model_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not in this model's vocabulary"):
        answer(DETOKENIZE, tokens=[7])


def test_a_message_to_count_must_be_text() -> None:
    with pytest.raises(InvalidRequest):
        TOKENIZE.allowed({"messages": [{"role": "user"}]})
