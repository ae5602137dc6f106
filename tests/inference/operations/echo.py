"""A complete operation without a use, written as the author of a new operation would write it."""

from __future__ import annotations

from typing import Any

import msgspec

from inference.errors import InferenceError, InvalidRequest
from inference.link.accounts import Usage
from inference.link.workload import Workload
from inference.operations.bodies.reading import decode
from inference.operations.openai import usage_body
from inference.operations.operation import Call, Framing, Operation, PlainPrompt


class _EchoFields(msgspec.Struct):
    model: str
    text: str
    stream: bool = False
    max_tokens: int = 64


class EchoFraming(Framing):
    """Each event is a JSON string; the last one is the whole answer without its text."""

    def __init__(self, id: str, model: str) -> None:
        self._head = {"id": id, "object": "echo", "model": model}

    def opening(self) -> bytes:
        return b""

    def text(self, text: str) -> bytes:
        return b"data: " + msgspec.json.encode(text) + b"\n\n"

    def chunk(self, chunk: bytes) -> bytes:
        return b"data: " + chunk + b"\n\n"

    def closing(self, finish_reason: str, limited: InferenceError | None = None) -> bytes:
        return b""

    def ending(self, usage: Usage) -> bytes:
        return self.chunk(msgspec.json.encode(self._head | {"usage": usage_body(usage)}))

    def whole(
        self,
        text: str,
        finish_reason: str,
        usage: Usage,
        limited: InferenceError | None = None,
    ) -> bytes:
        return msgspec.json.encode(self._head | {"text": text, "usage": usage_body(usage)})

    def response(self, response: bytes, limited: InferenceError | None) -> bytes:
        return response


class Echo(Operation):
    """`POST /v1/echo`: answers with the engine's reply to `text`."""

    name = "echo"
    path = "/v1/echo"
    id_prefix = "echo"
    accepted = frozenset({"text", "stream", "max_tokens"})

    _decoder = msgspec.json.Decoder(_EchoFields)

    def parse(self, body: bytes) -> Call:
        fields: _EchoFields = decode(self._decoder, body)
        if not fields.text:
            raise InvalidRequest("`text` must not be empty.", param="text")
        workload = Workload(max_tokens=fields.max_tokens)
        return Call(self, fields.model, stream=fields.stream, workload=workload, body=body)

    def framing(self, call: Call, id: str, created: int, revision: str = "") -> Framing:
        return EchoFraming(self.answer_id(id), call.model)

    def plain_prompt(self, fields: dict[str, Any]) -> PlainPrompt:
        return PlainPrompt(fields["text"], fields["text"])
