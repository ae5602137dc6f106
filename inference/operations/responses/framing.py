"""Writes a chat's answer in the Responses API's format: output items of a response, or its events.

The events of a stream are

    response.created, response.in_progress,
    (response.output_item.added, ..., response.output_item.done)*,
    response.completed | response.incomplete | response.failed

One item is open at a time: thoughts, a message, or a function call. Its deltas are within it; those
of a text are also within a content part. Events are numbered from 0 in the order in which they are
written, and item ids are made of the request's id and the item's index. So it does not matter which
engines the chunks come from, and a client that reconnects to a running answer gets the events from
0 again, with the same items.

The engine sends plain text, or chunks of a chat (`operations.openai`); both are handled here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from inference.errors import InferenceError
from inference.link.accounts import Usage
from inference.operations.openai import DONE, NULL, counts_of
from inference.operations.operation import Framing

_Part = tuple[str, str, bytes, dict[str, Any]]
"""A part of a whole answer: the item's kind, text, log-probabilities and further fields."""

_json = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

MESSAGE, REASONING, CALL = "message", "reasoning", "function_call"

ID_PREFIXES = {MESSAGE: "msg", REASONING: "rs", CALL: "fc"}
DELTAS = {
    MESSAGE: "response.output_text",
    REASONING: "response.reasoning_text",
    CALL: "response.function_call_arguments",
}
"""Names, without `.delta` and `.done`, of the events that extend and end an item's text."""

IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED = "in_progress", "completed", "incomplete", "failed"
"""Statuses of responses and items."""
QUEUED, CANCELLED = "queued", "cancelled"
"""Further statuses of responses that run in the background."""
LIVE = (QUEUED, IN_PROGRESS)
"""Statuses of responses that have not ended."""


class _Logprobs(msgspec.Struct):
    content: msgspec.Raw = NULL


class _Choice(msgspec.Struct):
    """A choice of a chat's answer. Log-probabilities stay raw: there may be megabytes of them."""

    message: dict[str, Any]
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: dict[str, Any]


_answer = msgspec.json.Decoder(_Answer)


class _Item:
    """One output item."""

    def __init__(self, kind: str, id: str, index: int, **fields: Any) -> None:
        self.kind, self._id, self._fields = kind, id, fields
        self.place: dict[str, Any] = {"item_id": id, "output_index": index}
        if kind != CALL:
            self.place["content_index"] = 0
        self._texts: list[str] = []
        self._logprobs: list[bytes] = []
        """JSON without brackets, several log-probabilities in each."""
        name = f"{DELTAS[kind]}.delta"
        head = _json({"type": name} | self.place)[:-1]
        self._before = b"event: " + name.encode() + b"\ndata: " + head + b',"sequence_number":'

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def logprobs(self) -> msgspec.Raw:
        return msgspec.Raw(b"[" + b",".join(self._logprobs) + b"]")

    def add(self, text: str, logprobs: bytes) -> None:
        """`logprobs` is JSON without the brackets of the list."""
        self._texts.append(text)
        if logprobs:
            self._logprobs.append(logprobs)

    def delta(self, number: int, text: str, logprobs: bytes) -> bytes:
        """Add this, and return its event. Called per token: assembled from encoded pieces."""
        self.add(text, logprobs)
        after = b',"logprobs":[' + logprobs + b"]" if self.kind == MESSAGE else b""
        return self._before + str(number).encode() + b',"delta":' + _json(text) + after + b"}\n\n"

    def part(self) -> dict[str, Any]:
        """Its content so far."""
        if self.kind == REASONING:
            return {"type": "reasoning_text", "text": self.text}
        content = {"type": "output_text", "text": self.text}
        return content | {"annotations": [], "logprobs": self.logprobs}

    def shown(self, status: str) -> dict[str, Any]:
        """The item so far; without content if `status` is IN_PROGRESS."""
        item: dict[str, Any] = {"id": self._id, "type": self.kind, "status": status}
        item |= self._fields
        if self.kind == CALL:
            return item | {"arguments": self.text}
        if self.kind == REASONING:
            item["summary"] = []
        else:
            item["role"] = "assistant"
        return item | {"content": [] if status == IN_PROGRESS else [self.part()]}


class ResponsesFraming(Framing):
    """The framing of one request, which has one choice."""

    def __init__(
        self,
        id: str,
        request_id: str,
        model: str,
        created: int,
        echoed: Mapping[str, Any],
        namespaces: Mapping[str, tuple[str, str]] | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`id` is the answer's; `echoed` has the request's fields that the answer repeats;
        `namespaces` as in `ResponseCall`."""
        self._namespaces = namespaces or {}
        self._response: dict[str, Any] = {
            "id": id,
            "object": "response",
            "created_at": created,
            "completed_at": None,
            "status": IN_PROGRESS,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "previous_response_id": None,
            "store": False,
            "usage": None,
            **echoed,
        }
        self._request_id, self._clock = request_id, clock
        self._number = 0
        """Number of the next event."""
        self._output: list[dict[str, Any]] = []
        """Items that have ended."""
        self._open: _Item | None = None
        self._calls: set[int] = set()
        """Indices, in the chat, of the calls that have an item."""
        self._held = ""
        """Text that arrived while a call was open; written once that has closed."""
        self._textless = b""
        """Log-probabilities of tokens that are parts of a character: sent with the character."""
        self._reason = ""
        self._limited: InferenceError | None = None

    def queued(self) -> bytes:
        """The body of the response before it runs, which may be much later."""
        return _json(self._response | {"status": QUEUED})

    def opening(self) -> bytes:
        """See `Framing`."""
        if self._number:
            return b""
        return b"".join(
            self._event(f"response.{name}", response=self._response)
            for name in ("created", IN_PROGRESS)
        )

    def text(self, text: str) -> bytes:
        """See `Framing`."""
        return self._add(MESSAGE, text)

    def chunk(self, chunk: bytes) -> bytes:
        """See `Framing`; takes a chat's chunk."""
        events = self.opening()
        for choice in _decode(chunk)["choices"]:
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning"):
                self._textless = b""
                events += self._add(REASONING, thought)
            logprobs = b",".join(filter(None, (self._textless, _logprobs(choice))))
            if text := delta.get("content"):
                self._textless = b""
                events += self._add(MESSAGE, text, logprobs)
            elif not any(delta.values()) and (self._open is None or self._open.kind == MESSAGE):
                self._textless = logprobs
            for call in delta.get("tool_calls") or ():
                events += self._call(call)
            self._reason = choice.get("finish_reason") or self._reason
        return events

    def closing(self, finish_reason: str, limited: InferenceError | None = None) -> bytes:
        """See `Framing`. The reason for the end is written by `ending`."""
        self._reason, self._limited = self._reason or finish_reason, limited
        events = self.opening()
        if self._open is None and not self._output:  # clients rely on there being an item
            events += self._start(MESSAGE)
        if self._textless:
            events += self._add(MESSAGE, "", self._textless)
        return events + self._close(INCOMPLETE if self._cut else COMPLETED)

    def ending(self, usage: Usage) -> bytes:
        """See `Framing`."""
        ended = self._ended(usage)
        return self._event(f"response.{ended['status']}", response=ended) + DONE

    def failed(self, error: InferenceError) -> bytes:
        """See `Framing`."""
        open = [] if self._open is None else [self._open.shown(INCOMPLETE)]
        failed = failure(error) | {"output": self._output + open}
        events = self.opening()
        return events + self._event("response.failed", response=self._response | failed) + DONE

    def whole(
        self,
        text: str,
        finish_reason: str,
        usage: Usage,
        limited: InferenceError | None = None,
    ) -> bytes:
        """See `Framing`."""
        return self._whole([(MESSAGE, text, b"", {})], finish_reason, usage, limited)

    def response(self, response: bytes, limited: InferenceError | None) -> bytes:
        """See `Framing`; takes a chat's answer."""
        answer: _Answer = _answer.decode(response)
        (choice,) = answer.choices
        parts: list[_Part] = []
        if thoughts := choice.message.get("reasoning"):
            parts.append((REASONING, thoughts, b"", {}))
        if text := choice.message.get("content"):
            logprobs = NULL if choice.logprobs is None else choice.logprobs.content
            of_text = b"" if bytes(logprobs) == b"null" else bytes(logprobs)[1:-1]
            parts.append((MESSAGE, text, of_text, {}))
        for call in choice.message.get("tool_calls") or ():
            function = call["function"]
            named = {"call_id": call["id"]} | self._named(function["name"])
            parts.append((CALL, function["arguments"], b"", named))
        reason = choice.finish_reason or ""
        return self._whole(parts, reason, counts_of(answer.usage), limited)

    def _whole(
        self, parts: list[_Part], reason: str, usage: Usage, limited: InferenceError | None
    ) -> bytes:
        """The answer of these parts; with an empty message if there are none, as in a stream."""
        self._reason, self._limited = reason, limited
        for kind, text, logprobs, fields in parts or [(MESSAGE, "", b"", {})]:
            item = self._item(kind, **fields)
            item.add(text, logprobs)
            is_last = len(self._output) + 1 >= len(parts)
            self._output.append(item.shown(INCOMPLETE if self._cut and is_last else COMPLETED))
        return _json(self._ended(usage))

    # --- events ----------------------------------------------------------------------------------

    def _event(self, type: str, **fields: Any) -> bytes:
        numbered = {"type": type, "sequence_number": self._number} | fields
        self._number += 1
        return b"event: " + type.encode() + b"\ndata: " + _json(numbered) + b"\n\n"

    def _add(self, kind: str, text: str, logprobs: bytes = b"") -> bytes:
        if self._open is not None and self._open.kind == CALL and kind == MESSAGE:
            self._held += text  # more of the call may come
            return b""
        opening = b"" if self._open is not None and self._open.kind == kind else self._start(kind)
        return opening + self._delta(text, logprobs)

    def _delta(self, text: str, logprobs: bytes) -> bytes:
        assert self._open is not None
        event = self._open.delta(self._number, text, logprobs)
        self._number += 1
        return event

    def _call(self, call: dict[str, Any]) -> bytes:
        """The events for a chunk of a function call; a call's first chunk has its id and name."""
        events, function = b"", call.get("function") or {}
        if call["index"] not in self._calls:
            self._calls.add(call["index"])
            events += self._start(CALL, call_id=call.get("id"), **self._named(function.get("name")))
        if arguments := function.get("arguments"):
            events += self._delta(arguments, b"")
        return events

    def _named(self, name: str | None) -> dict[str, str | None]:
        """The fields of a call that name its function."""
        if name is None or name not in self._namespaces:
            return {"name": name}
        namespace, own = self._namespaces[name]
        return {"name": own, "namespace": namespace}

    def _start(self, kind: str, **fields: Any) -> bytes:
        events = self._close(COMPLETED)
        item = self._open = self._item(kind, **fields)
        index, added = len(self._output), item.shown(IN_PROGRESS)
        events += self._event("response.output_item.added", output_index=index, item=added)
        if kind != CALL:
            part = item.part()
            events += self._event("response.content_part.added", **item.place, part=part)
        return events

    def _item(self, kind: str, **fields: Any) -> _Item:
        """A new item with the next index."""
        index = len(self._output)
        return _Item(kind, f"{ID_PREFIXES[kind]}_{self._request_id}_{index}", index, **fields)

    def _close(self, status: str) -> bytes:
        if (item := self._open) is None:
            return b""
        self._open = None
        done = item.shown(status)
        self._output.append(done)
        fields: dict[str, Any] = {"arguments" if item.kind == CALL else "text": item.text}
        if item.kind == MESSAGE:
            fields["logprobs"] = item.logprobs
        events = self._event(f"{DELTAS[item.kind]}.done", **item.place, **fields)
        if item.kind != CALL:
            part = item.part()
            events += self._event("response.content_part.done", **item.place, part=part)
        index = item.place["output_index"]
        events += self._event("response.output_item.done", output_index=index, item=done)
        held, self._held = self._held, ""
        if held.strip():
            events += self._add(MESSAGE, held) + self._close(status)
        return events

    # --- the end ---------------------------------------------------------------------------------

    @property
    def _cut(self) -> bool:
        return self._reason == "length" or self._limited is not None

    def _ended(self, usage: Usage) -> dict[str, Any]:
        """The whole response, including a limit, if one ended it, as in chats."""
        ended: dict[str, Any] = {"status": COMPLETED, "completed_at": int(self._clock())}
        if self._cut:
            why = {"reason": "max_output_tokens"}
            ended = {"status": INCOMPLETE, "incomplete_details": why}
        if self._limited is not None:
            details = {"code": self._limited.code, "message": self._limited.message}
            ended["finish_details"] = details
        return self._response | ended | {"output": self._output, "usage": _usage(usage)}


def _logprobs(choice: dict[str, Any]) -> bytes:
    """The log-probabilities of a chunk's choice, as JSON without the brackets of the list."""
    found = (choice.get("logprobs") or {}).get("content")
    return _json(found)[1:-1] if found else b""


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def failure(error: InferenceError) -> dict[str, Any]:
    """The fields of a response that ended with this error."""
    body = {"code": _code_of(error), "message": error.message, "type": error.code}
    return {"status": FAILED, "error": body}


def _code_of(error: InferenceError) -> str:
    """One of the few codes of this API; the error's own code goes into `type`."""
    if error.http_status == 429:
        return "rate_limit_exceeded"
    return "server_error" if error.http_status >= 500 else "invalid_prompt"
