"""Deviations from the SDKs' types are found."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.document.sdk_types import faults

pytestmark = pytest.mark.pure

CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "service_tier": "default",
    "system_fingerprint": "fp_1",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "logprobs": None,
            "message": {"role": "assistant", "content": "", "refusal": None, "annotations": []},
        }
    ],
}
CHUNK: dict[str, Any] = CHAT | {
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "finish_reason": None, "logprobs": None, "delta": {}}],
}
EVENT: dict[str, Any] = {
    "type": "content_block_delta",
    "index": 0,
    "delta": {"type": "text_delta", "text": "a"},
}


def found(operation: str, body: dict[str, Any], *, event: bool = False) -> str:
    return " ".join(faults(operation, json.dumps(body).encode(), event=event))


def test_what_is_right_is_right() -> None:
    assert not found("chat", CHAT)
    assert not found("chat", CHUNK, event=True)
    assert not found("messages", EVENT, event=True)
    assert not found("tokenize", {"anything": None})


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"system_fingerprint": None}, ".system_fingerprint is null"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"created": "1"}, "created"),
        ({"more": 1}, ".more is in no type"),
    ],
)
def test_what_is_wrong_is_found(changed: dict[str, Any], fault: str) -> None:
    assert fault in found("chat", CHAT | changed)
    assert fault in found("chat", CHUNK | changed, event=True)


def test_a_field_within_is_looked_at() -> None:
    choice = CHAT["choices"][0] | {"stop_reason": "x"}
    assert "choices[0].stop_reason is in no type" in found("chat", CHAT | {"choices": [choice]})


def test_an_event_of_another_api_is_found() -> None:
    assert found("messages", CHUNK, event=True)
    assert "partial" in found("messages", EVENT | {"partial": 1}, event=True)
