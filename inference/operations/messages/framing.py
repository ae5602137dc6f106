"""Writes a chat's answer in Anthropic's format: a message of content blocks, or its events.

The events of a stream are

    message_start, (content_block_start, content_block_delta*, content_block_stop)*,
    message_delta, message_stop

One block is open at a time, and another kind of content closes it: thoughts, text, and each tool
call. The engine sends plain text, or chunks of a chat (`operations.openai`); both are handled here.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from inference.errors import InferenceError
from inference.link.accounts import Usage
from inference.operations.openai import counts_of
from inference.operations.operation import Framing

_json = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

TEXT, THINKING, TOOL = "text", "thinking", "tool_use"

STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
"""By a chat's finish reason; any other is `end_turn`, or `stop_sequence` if one was generated."""

_START: dict[str, dict[str, Any]] = {
    TEXT: {"type": TEXT, "text": "", "citations": []},
    THINKING: {"type": THINKING, "thinking": "", "signature": ""},
}


class MessagesFraming(Framing):
    """The framing of one request, which has one choice.

    It has all keys that Anthropic's schema requires, null where there is nothing; `citations` is an
    empty list instead, because the Vercel AI SDK takes null for another type.
    """

    def __init__(self, id: str, model: str, *, reports_edits: bool = False) -> None:
        """`reports_edits`: the answer says that the conversation was not edited."""
        self._message: dict[str, Any] = {
            "id": id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "container": None,
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
        }
        self._edits: dict[str, Any] = {}
        if reports_edits:
            self._edits["context_management"] = {"applied_edits": []}
        self._prompt = Usage()
        self._began = False
        self._kind = ""
        """Kind of the open block; empty if none is open."""
        self._index = -1
        """Index of the last block."""
        self._calls: set[int] = set()
        """Indices, in the chat, of the calls that have a block."""
        self._held = ""
        """Text that arrived while a call was open; written once that has closed."""
        self._signed = hashlib.sha256()
        self._reason = ""
        self._stop: str | None = None
        self._limited: InferenceError | None = None

    def counted(self, prompt_tokens: int, cached_tokens: int) -> None:
        """See `Framing`."""
        self._prompt = Usage(prompt_tokens, cached_tokens)

    def opening(self) -> bytes:
        """Empty: the first text or chunk writes the beginning, which has the prompt's usage."""
        return b""

    def text(self, text: str) -> bytes:
        """See `Framing`."""
        return self._begin() + self._add(TEXT, "text_delta", "text", text)

    def chunk(self, chunk: bytes) -> bytes:
        """See `Framing`; takes a chat's chunk."""
        events = self._begin()
        for choice in _decode(chunk)["choices"]:
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning"):
                self._signed.update(thought.encode())
                events += self._add(THINKING, "thinking_delta", "thinking", thought)
            if text := delta.get("content"):
                events += self._add(TEXT, "text_delta", "text", text)
            for call in delta.get("tool_calls") or ():
                events += self._call(call)
            if reason := choice.get("finish_reason"):
                self._reason, self._stop = reason, choice.get("stop_reason")
        return events

    def closing(self, finish_reason: str, limited: InferenceError | None = None) -> bytes:
        """See `Framing`. The finish reason is written by `ending`."""
        self._reason, self._limited = self._reason or finish_reason, limited
        events = self._begin()
        if self._index < 0:  # clients rely on there being a block
            events += self._open(TEXT, _START[TEXT])
        return events + self._close()

    def ending(self, usage: Usage) -> bytes:
        """See `Framing`."""
        delta = self._ended(self._reason, self._stop, called=bool(self._calls))
        fields = _usage(usage)
        counts = {name: fields[name] for name in _DELTA_USAGE}
        last = _event("message_delta", delta=delta, usage=counts, **self._edits)
        return last + _event("message_stop")

    def whole(
        self,
        text: str,
        finish_reason: str,
        usage: Usage,
        limited: InferenceError | None = None,
    ) -> bytes:
        """See `Framing`."""
        self._limited = limited
        ended = self._ended(finish_reason, None, called=False)
        content = [_START[TEXT] | {"text": text}]
        return self._whole_message(ended, content, usage)

    def response(self, response: bytes, limited: InferenceError | None) -> bytes:
        """See `Framing`; takes a chat's answer."""
        self._limited = limited
        answer = _decode(response)
        (choice,) = answer["choices"]
        message = choice["message"]
        calls = [_called(call) for call in message.get("tool_calls") or ()]
        content: list[dict[str, Any]] = []
        if thought := message.get("reasoning"):
            signature = hashlib.sha256(thought.encode()).hexdigest()
            content.append({"type": THINKING, "thinking": thought, "signature": signature})
        if (text := message.get("content")) or not (content or calls):
            content.append(_START[TEXT] | {"text": text or ""})
        ended = self._ended(choice["finish_reason"], choice.get("stop_reason"), called=bool(calls))
        return self._whole_message(ended, content + calls, counts_of(answer["usage"]))

    def _whole_message(
        self, ended: dict[str, Any], content: list[dict[str, Any]], usage: Usage
    ) -> bytes:
        whole = self._message | ended | {"content": content, "usage": _usage(usage)}
        return _json(whole | self._edits)

    # --- events ----------------------------------------------------------------------------------

    def _begin(self) -> bytes:
        """The beginning of the stream at the first call, then empty."""
        if self._began:
            return b""
        self._began = True
        return _event("message_start", message=self._message | {"usage": _usage(self._prompt)})

    def _add(self, kind: str, delta: str, field: str, value: str) -> bytes:
        if self._kind == TOOL and kind == TEXT:  # more of the call may come
            self._held += value
            return b""
        opening = b"" if self._kind == kind else self._open(kind, _START[kind])
        return opening + self._delta(delta, field, value)

    def _call(self, call: dict[str, Any]) -> bytes:
        """The events for a chunk of a tool call; a call's first chunk has its id and name."""
        events, function = b"", call.get("function") or {}
        if call["index"] not in self._calls:
            self._calls.add(call["index"])
            events += self._open(TOOL, _tool_use(call.get("id"), function.get("name"), {}))
        if arguments := function.get("arguments"):
            events += self._delta("input_json_delta", "partial_json", arguments)
        return events

    def _open(self, kind: str, block: dict[str, Any]) -> bytes:
        closing = self._close()
        self._kind, self._index = kind, self._index + 1
        return closing + _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        signature = b""
        if self._kind == THINKING:
            signature = self._delta("signature_delta", "signature", self._signed.hexdigest())
        self._kind = ""
        closing = signature + _event("content_block_stop", index=self._index)
        held, self._held = self._held, ""
        if held.strip():
            closing += self._add(TEXT, "text_delta", "text", held) + self._close()
        return closing

    def _delta(self, type: str, field: str, value: str) -> bytes:
        delta = {"type": type, field: value}
        return _event("content_block_delta", index=self._index, delta=delta)

    # --- the end ---------------------------------------------------------------------------------

    def _ended(self, reason: str, stop: str | None, *, called: bool) -> dict[str, Any]:
        """The fields that say why it ended, including a limit, if one ended it, as in chats."""
        if called and reason == "stop":  # a chat's reason where `tool_choice` named the function
            reason = "tool_calls"
        stop_reason = STOP_REASONS.get(reason, "end_turn" if stop is None else "stop_sequence")
        ended: dict[str, Any] = {
            "container": None,
            "stop_reason": stop_reason,
            "stop_sequence": stop if stop_reason == "stop_sequence" else None,
            "stop_details": None,
        }
        if self._limited is not None:
            why = {"code": self._limited.code, "message": self._limited.message}
            ended["finish_details"] = why
        return ended


_DELTA_USAGE = (
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "input_tokens",
    "output_tokens",
    "output_tokens_details",
    "server_tool_use",
)
"""The fields of the usage at the end of a stream."""


def _event(type: str, **fields: Any) -> bytes:
    return b"event: " + type.encode() + b"\ndata: " + _json({"type": type} | fields) + b"\n\n"


def _usage(usage: Usage) -> dict[str, Any]:
    """The `usage` of this API, in which `input_tokens` excludes cached prompt tokens."""
    return {
        "cache_creation": None,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "inference_geo": None,
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "server_tool_use": None,
        "service_tier": "standard",
    }


def _called(call: dict[str, Any]) -> dict[str, Any]:
    """A tool call of a chat's answer as a block; without arguments if a limit cut them."""
    try:
        given = msgspec.json.decode(call["function"]["arguments"] or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        given = {}
    return _tool_use(call["id"], call["function"]["name"], given)


def _tool_use(id: str | None, name: str | None, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": TOOL, "id": id, "name": name, "input": given, "caller": {"type": "direct"}}
