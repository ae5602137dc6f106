"""What an agent and its engine read of a body: figures for the queue, and the fields that engines
see."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION
from inference.operations.registry import OPERATIONS, OperationRegistry
from inference.operations.tokens import TOKENIZE

pytestmark = pytest.mark.pure

HELLO = [{"role": "user", "content": "Hello"}]
TEXT = {"type": "text", "text": "Hello"}


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"a":' + b"[" * 100_000])
def test_a_frame_carries_a_json_object(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        CHAT.read(body, None)


def test_limits_bound_what_the_body_does_not() -> None:
    body = json.dumps({"messages": HELLO}).encode()
    assert CHAT.read(body, None) == {"messages": HELLO}
    assert CHAT.read(body, 7) == {"messages": HELLO, "max_tokens": 7}


@pytest.mark.parametrize(
    ("body", "max_tokens"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": -5}, 0),
        ({"max_tokens": "many"}, None),
    ],
)
def test_what_bounds_a_choice(body: dict[str, Any], max_tokens: int | None) -> None:
    assert CHAT.max_tokens(body) == max_tokens


@pytest.mark.parametrize(("body", "max_tokens"), [({}, 16), ({"max_tokens": 5}, 5)])
def test_a_completion_is_bounded_by_its_default(body: dict[str, Any], max_tokens: int) -> None:
    assert COMPLETION.max_tokens(body) == max_tokens


def test_engines_see_listed_fields_alone() -> None:
    body = {
        "messages": HELLO,
        "temperature": 0.5,
        "cache_salt": "of another tenant",
        "priority": -1,
        "request_id": "x",
        "unheard_of": 1,
        "chat_template_kwargs": {"enable_thinking": False, "thinking": "maybe", "tokenize": True},
    }
    kept = {
        "messages": HELLO,
        "temperature": 0.5,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert CHAT.allowed(body) == kept
    assert "cache_salt" in body, "it is left as it is"
    assert CHAT.allowed({"messages": HELLO, "chat_template_kwargs": 7}) == {"messages": HELLO}
    assert COMPLETION.allowed({"prompt": "a", "messages": HELLO}) == {"prompt": "a"}


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}])
def test_an_empty_list_of_tools_is_no_tools(choice: dict[str, Any]) -> None:
    asked = {"messages": HELLO, "tools": [], **choice}
    assert CHAT.allowed(asked) == {"messages": HELLO}
    assert TOKENIZE.allowed(asked) == {"messages": HELLO}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"content": "hello"}]}, "messages[0]"),
        ({"messages": [*HELLO, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content"),
        ({"best_of": 2}, "best_of"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"messages": [{"role": "assistant", "content": [TEXT]}], "echo": True}, "echo"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
    ],
)
def test_invalid_chats_are_refused_before_the_engine(
    fields: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        CHAT.allowed({"messages": HELLO} | fields)
    assert refused.value.param == param
    assert len(refused.value.message) < 1000


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 1, "modalities": ["text"], "functions": None},
        {"echo": True},
        {"messages": [{"role": "assistant"}, {"role": "user", "content": [TEXT]}]},
    ],
)
def test_neutral_values_of_unserved_fields_are_accepted(fields: dict[str, Any]) -> None:
    assert CHAT.allowed({"messages": HELLO} | fields)


@pytest.mark.parametrize("prompt", [None, "", [], 7, {"a": 1}, [-1], [[1], "a"], [1, None], [True]])
def test_invalid_prompts_are_refused_before_the_engine(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        COMPLETION.allowed({"prompt": prompt})
    assert refused.value.param == "prompt"


def test_empty_fields_are_dropped() -> None:
    assert COMPLETION.allowed({"prompt": "a", "suffix": "", "stop": None}) == {"prompt": "a"}
    assert COMPLETION.allowed({"prompt": "a", "suffix": "b"}) == {"prompt": "a", "suffix": "b"}


def test_a_top_p_of_0_means_greedy_sampling() -> None:
    asked = {"prompt": "a", "top_p": 0, "temperature": 1.5, "top_k": 40}
    assert COMPLETION.allowed(asked) == {"prompt": "a", "temperature": 1.5, "top_k": 1}
    assert COMPLETION.allowed({"prompt": "a", "top_p": 0.5}) == {"prompt": "a", "top_p": 0.5}


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_prompts_are_texts_or_tokens(prompt: Any) -> None:
    assert COMPLETION.allowed({"prompt": prompt, "stop": "x"}) == {"prompt": prompt, "stop": "x"}


def test_a_chat_in_plain_text() -> None:
    parts = [{"type": "text", "text": "Who "}, {"type": "text", "text": "are you?"}, {}]
    messages = [{"role": "system", "content": None}, {"role": "user", "content": parts}]
    assert CHAT.plain_prompt({"messages": messages}) == (
        "<system><user>Who are you?",
        "Who are you?",
    )


def test_a_prompt_in_plain_text() -> None:
    assert COMPLETION.plain_prompt({"prompt": "Hello"}) == ("Hello", "Hello")
    assert COMPLETION.plain_prompt({"prompt": [1, 20]}) == ("   1  20", "2 tokens")
    with pytest.raises(InvalidRequest, match="one prompt"):
        COMPLETION.plain_prompt({"prompt": ["a", "b"]})


def test_operations_are_found_by_name_and_path() -> None:
    assert OPERATIONS.named("chat") is OPERATIONS.at("/v1/chat/completions") is CHAT
    assert OPERATIONS.named("completion") is OPERATIONS.at("/v1/completions") is COMPLETION
    assert OPERATIONS.at("/v1/chat") is None
    with pytest.raises(InvalidRequest, match="`poem`"):
        OPERATIONS.named("poem")
    with pytest.raises(ValueError, match="chat"):
        OperationRegistry([CHAT, CHAT])
