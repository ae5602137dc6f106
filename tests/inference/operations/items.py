"""Reads an answer of the Responses API, or its events, as the equivalent chat."""

from __future__ import annotations

from typing import Any

REASONS = {"completed": "stop", "incomplete": "length"}
"""The chat's finish reason, by the response's status."""


def is_item_event(body: dict[str, Any]) -> bool:
    """Whether it is an event or an answer of the Responses API."""
    return body.get("object") == "response" or str(body.get("type")).startswith("response.")


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The equivalent chunk of a chat."""
    kind = body.get("type", "")
    if kind == "response.created":
        return _chunk({"role": "assistant"})
    if kind == "response.output_text.delta":
        return _chunk({"content": body["delta"]})
    response = body.get("response", body)
    if kind == "response.failed":
        error = response["error"]
        return {"error": {"code": error["type"], "message": error["message"]}}
    if (reason := REASONS.get(response.get("status"))) is None:
        return {"choices": []}
    counted = response["usage"]
    usage = {
        "prompt_tokens": counted["input_tokens"],
        "completion_tokens": counted["output_tokens"],
    }
    (item,) = response["output"]
    said = {} if kind else {"role": "assistant", "content": item["content"][0]["text"]}
    return _chunk(said, reason) | {"usage": usage}


def _chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def check_order(events: list[dict[str, Any]]) -> None:
    """Check that the events are numbered without gaps, belong to one response and repeat no item,
    and that each item begins, ends and in the end equals its deltas."""
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    begun = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [one["id"] for one in begun] == [one["id"] for one in items]
    assert events[-1]["response"]["output"] == items
    for item in items:
        deltas = [event["delta"] for event in events if event.get("item_id") == item["id"]
                  and event["type"].endswith(".delta")]  # fmt: skip
        said = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert "".join(deltas) == said
