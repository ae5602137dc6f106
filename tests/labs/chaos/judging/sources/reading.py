"""Reads the answers of each operation, as chunks or as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inference.operations.registry import OPERATIONS
from tests.labs.chaos.judging.facts import NOTHING, Counts

ERROR_FIELDS = {"message", "type", "param", "code"}


@dataclass(frozen=True, slots=True)
class Said:
    """What a chunk adds, or the content of a whole answer."""

    texts: Mapping[int, str] = field(default_factory=dict)
    """Generated text, by choice."""
    rest: str = ""
    """What else of the answer must be the same when the request is repeated."""
    usage: Counts | None = None
    limited: bool = False
    """A limit ended it."""
    ended: bool = False
    """Nothing follows this chunk."""
    error: str = ""
    """The error's code."""


Reader = Callable[[dict[str, Any]], Said]
"""Reads a JSON body. Raises KeyError, TypeError or ValueError if it is not one of the operation."""


def reader_of(path: str) -> Reader:
    """The reader for the operation at this path."""
    operation = OPERATIONS.at(path)
    assert operation is not None, path
    return READERS[operation.name]


def error_of(error: Any) -> str:
    """The code of an error in the shape that all operations share.

    Raises:
        ValueError: it does not have that shape.
    """
    if set(error) != ERROR_FIELDS or not (error["message"] and error["type"] and error["code"]):
        raise ValueError(f"not an error as OpenAI has them: {error}")
    return str(error["code"])


def _openai(body: dict[str, Any]) -> Said:
    if "error" in body:
        return Said(error=error_of(body["error"]))
    texts, limited, usage = dict[int, str](), False, body.get("usage")
    for choice in body["choices"]:
        said = choice.get("delta") or choice.get("message") or choice
        texts[choice["index"]] = said.get("content") or said.get("text") or ""
        limited |= "finish_details" in choice
    counts = usage and Counts(
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
    )
    return Said(texts, usage=counts or None, limited=limited)


def _responses(body: dict[str, Any]) -> Said:
    if body.get("object") == "response":
        texts = [part["text"] for item in body["output"] for part in item["content"]]
        return Said({0: "".join(texts)}, usage=_of_response(body), limited="finish_details" in body)
    match body.get("type"):
        case "response.output_text.delta":
            return Said({0: body["delta"]})
        case "response.completed" | "response.incomplete":
            response = body["response"]
            return Said(usage=_of_response(response), limited="finish_details" in response)
        case "response.failed":
            return Said(error=body["response"]["error"]["type"])
        case str(type) if type.startswith("response."):
            return Said()
    return Said(error=error_of(body["error"]))


def _of_response(response: dict[str, Any]) -> Counts:
    usage = response["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    return Counts(usage["input_tokens"], cached, usage["output_tokens"])


def _messages(body: dict[str, Any]) -> Said:
    match body["type"]:
        case "message":
            text = "".join(block["text"] for block in body["content"])
            return Said({0: text}, usage=_of_message(body), limited="finish_details" in body)
        case "content_block_delta":
            return Said({0: body["delta"]["text"]})
        case "message_delta":
            return Said(usage=_of_message(body), limited="finish_details" in body["delta"])
        case "error":
            return Said(error=error_of(body["error"]))
    return Said(ended=body["type"] == "message_stop")


def _of_message(body: dict[str, Any]) -> Counts:
    """Cached tokens are counted separately there."""
    usage = body["usage"]
    cached = usage["cache_read_input_tokens"]
    return Counts(usage["input_tokens"] + cached, cached, usage["output_tokens"])


def _pooled(body: dict[str, Any]) -> Said:
    answer = body["results"] if "results" in body else body["data"]
    return Said(rest=json.dumps(answer), usage=Counts(body["usage"]["prompt_tokens"]))


def _instant(body: dict[str, Any]) -> Said:
    if not body or "error" in body:
        raise ValueError("an error without the status of one")
    return Said(rest=json.dumps(body), usage=NOTHING)


READERS: Mapping[str, Reader] = {
    "chat": _openai,
    "completion": _openai,
    "responses": _responses,
    "messages": _messages,
    "embeddings": _pooled,
    "score": _pooled,
    "rerank": _pooled,
    "count_tokens": _instant,
    "input_tokens": _instant,
    "tokenize": _instant,
    "detokenize": _instant,
}
"""By the operation's name."""
