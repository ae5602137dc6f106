"""Reads an answer of the Responses API, or the events of one, as the chat that it is."""

from __future__ import annotations

from typing import Any

REASONS = {"completed": "stop", "incomplete": "length"}
"""Of a chat, by the status of a response."""


def is_item_event(body: dict[str, Any]) -> bool:
    """Whether it is an event or an answer of that API."""
    return body.get("object") == "response" or str(body.get("type")).startswith("response.")


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """What a chat would say there, as a chunk."""
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
    """See that they are numbered without a gap, of one response, and that no item comes twice: each
    begins, ends, and is in the end what its deltas say."""
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
