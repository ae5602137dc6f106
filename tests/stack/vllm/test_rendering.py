"""What a trainer learns follows exactly the prompt that an engine reads: both render dialogues with
the base model's chat template, by whichever operation they come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from demo import BASE, MODEL_NAME, TENANTS
from tenants.tuning.child.rows import row_of
from tenants.tuning_states import SUPERVISED
from tests.stack.running import Stack

pytestmark = [pytest.mark.stack, pytest.mark.vllm]


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


ANSWER = said("assistant", "It is sunny.")
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
DIALOGUES: dict[str, dict[str, Any]] = {
    "one question": {"messages": [said("user", "How is it?"), ANSWER]},
    "a system's words": {"messages": [said("system", "Be brief."), said("user", "Well?"), ANSWER]},
    "several turns": {
        "messages": [
            said("user", "Hello"), said("assistant", "Hi!", weight=0), said("user", "And?"), ANSWER,
        ]
    },
    "tools": {"messages": [said("user", "Lima?"), ANSWER], "tools": [TOOL]},
    "a tool's answer": {
        "messages": [
            said("user", "Lima?"), {"role": "assistant", "tool_calls": [CALL], "weight": 0},
            said("tool", "27 degrees", tool_call_id="call_1"), ANSWER,
        ],
        "tools": [TOOL],
    },
}  # fmt: skip


def prompt(row: dict[str, Any]) -> list[int]:
    """The tokens before the first one that is learned."""
    from transformers import AutoTokenizer

    from tenants.tuning.child.encoding import EncodedRow, RowEncoder

    encoder = RowEncoder(AutoTokenizer.from_pretrained(BASE), 512)
    found = encoder.encode(row_of(json.dumps(row).encode(), SUPERVISED))
    assert isinstance(found, EncodedRow)
    return found.ids[: found.learned.index(True)]


@pytest.mark.parametrize("name", DIALOGUES)
def test_a_trainer_and_an_engine_render_alike(stack: Stack, name: str) -> None:
    row = DIALOGUES[name]
    before = [{key: one[key] for key in one if key != "weight"} for one in row["messages"][:-1]]
    tools = {"tools": row["tools"]} if "tools" in row else {}
    expected = prompt(row)
    with stack.client(stack.key(TENANTS[0].slug)) as client:

        def asked(path: str, **fields: Any) -> Any:
            answer = client.post(path, json={"model": MODEL_NAME, **fields})
            assert answer.is_success, answer.text
            return answer.json()

        chat = asked(
            "/v1/chat/completions", messages=before, max_tokens=1, return_token_ids=True, **tools
        )
        assert chat["prompt_token_ids"] == expected
        assert asked("/tokenize", messages=before, **tools)["tokens"] == expected
        if tools:  # whose shape differs in the other operations
            return
        counted = asked("/v1/responses/input_tokens", input=before)
        assert counted["input_tokens"] == len(expected)
        system = "".join(one["content"] for one in before if one["role"] == "system")
        turns = [one for one in before if one["role"] != "system"]
        given = {"system": system} if system else {}
        counted = asked("/v1/messages/count_tokens", messages=turns, **given)
        assert counted["input_tokens"] == len(expected)
