"""The user's last message, as each operation reads it: by this a route chooses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inference.operations.bodies.beginnings import MAX_PARTS, MAX_QUESTION, Beginnings
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION, MAX_ASKED_BYTES
from inference.operations.messages.messages import MESSAGES
from inference.operations.operation import Operation
from inference.operations.responses.responses import RESPONSES

pytestmark = pytest.mark.pure

USER, ASSISTANT = {"role": "user"}, {"role": "assistant", "content": "Hello"}
RESULT = USER | {"content": [{"type": "tool_result", "tool_use_id": "1", "content": "42"}]}
PARTS = [{"type": "text", "text": "of "}, {"type": "text", "text": "parts"}]
INPUT = [{"type": "input_text", "text": "of parts"}]


def question(operation: Operation, **fields: Any) -> str:
    call = operation.parse(msgspec.json.encode({"model": "m", "max_tokens": 1} | fields))
    assert call.beginnings.question_chars == len(call.beginnings.question)
    return call.beginnings.question


@pytest.mark.parametrize(
    ("operation", "fields", "asked"),
    [
        (CHAT, {"messages": [USER | {"content": "first"}, USER | {"content": "last"}]}, "last"),
        (CHAT, {"messages": [USER | {"content": "it"}, ASSISTANT]}, "it"),
        (CHAT, {"messages": [USER | {"content": PARTS}]}, "of parts"),
        (CHAT, {"messages": [ASSISTANT]}, ""),
        (MESSAGES, {"messages": [USER | {"content": "first"}, USER | {"content": PARTS}]},
         "of parts"),
        (MESSAGES, {"messages": [USER | {"content": "it"}, ASSISTANT, RESULT]}, "it"),
        (MESSAGES, {"messages": [RESULT]}, ""),
        (RESPONSES, {"input": "it"}, "it"),
        (RESPONSES, {"input": [USER | {"content": "it"}, ASSISTANT]}, "it"),
        (RESPONSES, {"input": [USER | {"content": INPUT}]}, "of parts"),
        (RESPONSES, {"input": [ASSISTANT]}, ""),
        (COMPLETION, {"prompt": 'say "it"\n'}, 'say "it"\n'),
        (COMPLETION, {"prompt": [1, 2]}, ""),
        (COMPLETION, {"prompt": ["a", "b"]}, ""),
        (COMPLETION, {"prompt": 5}, ""),
        (COMPLETION, {"prompt": "x" * MAX_ASKED_BYTES}, ""),
    ],
)  # fmt: skip
def test_the_last_message_of_the_user(
    operation: Operation, fields: dict[str, Any], asked: str
) -> None:
    assert question(operation, **fields) == asked


def test_of_a_long_message_its_beginning_and_its_end_count() -> None:
    half = MAX_QUESTION // 2
    for texts in (["a" * half, "b" * 10**6, "c" * half], ["a" * half + "b" * 10**6 + "c" * half]):
        found = Beginnings()
        found.ask(texts)
        assert found.question == "a" * half + "c" * half
        assert found.question_chars == 10**6 + 2 * half
    whole = Beginnings()
    whole.ask(["a" * (half + 5), "b" * (half - 5)])
    assert whole.question == "a" * (half + 5) + "b" * (half - 5)


def test_a_message_of_very_many_parts_is_not_read_to_its_end() -> None:
    found = Beginnings()
    found.ask(["a"] * 10**6)
    assert found.question == "a" * MAX_PARTS
