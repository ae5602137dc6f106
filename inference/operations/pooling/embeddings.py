"""`POST /v1/embeddings`."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from inference.errors import InvalidRequest
from inference.link.workload import Workload
from inference.operations.bodies.reading import decode, require_model
from inference.operations.openai import NULL
from inference.operations.operation import Call
from inference.operations.pooling.pooling import (
    AnswerMetadata,
    PoolingOperation,
    Text,
    Vector,
    check_length,
    count_texts,
)

_encode = msgspec.json.Encoder().encode


class _EmbeddingFields(msgspec.Struct):
    model: str
    input: msgspec.Raw = NULL
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None
    truncate_prompt_tokens: int | None = None
    user: str | None = None


class EmbeddingsOperation(PoolingOperation):
    """A vector for each text; texts may come as tokens."""

    name = "embeddings"
    path = "/v1/embeddings"
    id_prefix = "embd"
    in_batches = True
    accepted = frozenset({"dimensions", "encoding_format", "input", "truncate_prompt_tokens"})
    decoder = msgspec.json.Decoder(_EmbeddingFields)
    takes_tokens = True

    def parse(self, body: bytes) -> Call:
        """See `Operation`."""
        fields: _EmbeddingFields = decode(self.decoder, body)
        require_model(fields.model)
        if bytes(fields.input) == b"null":
            raise InvalidRequest("You must provide an input parameter.", param="input")
        if fields.dimensions is not None and fields.dimensions < 1:
            raise InvalidRequest(
                f"`dimensions` is {fields.dimensions}: it must be at least 1.", param="dimensions"
            )
        inputs, tokens = count_texts(fields.input, "input")
        workload = Workload(prompts=inputs, prompt_tokens=tokens, max_tokens=0)
        return Call(self, fields.model, workload=workload, body=body)

    def texts(self, fields: dict[str, Any]) -> list[tuple[str, Text]]:
        """A list of numbers is one input, as tokens."""
        given = fields["input"]
        if isinstance(given, list) and not (given and isinstance(given[0], int)):
            return [(f"input[{i}]", text) for i, text in enumerate(given)]
        return [("input", given)]

    def plain_answer(
        self, fields: dict[str, Any], vectors: Sequence[Vector], metadata: AnswerMetadata
    ) -> bytes:
        """See `Operation`."""
        return self.whole((self.entry(i, one, fields) for i, one in enumerate(vectors)), metadata)

    def entry(self, index: int, vector: Vector, fields: dict[str, Any]) -> bytes:
        """The answer's entry for one input, as JSON."""
        embedding: str | list[float]
        if fields.get("encoding_format") == "base64":
            packed = struct.pack(f"<{len(vector)}f", *vector)
            embedding = base64.b64encode(packed).decode("ascii")
        else:
            embedding = vector.tolist()
        return _encode({"object": "embedding", "index": index, "embedding": embedding})

    def whole(self, entries: Iterable[bytes], metadata: AnswerMetadata) -> bytes:
        """The answer with these entries.

        Raises:
            InvalidRequest: it would be too long.
        """
        data = b",".join(entries)
        self.check_bytes(len(data))
        metadata_json = _encode({"model": metadata.model, "usage": metadata.usage})
        return b'{"object":"list","data":[' + data + b"]," + metadata_json[1:]

    def check_bytes(self, entries: int) -> None:
        """Check that an answer can be sent whose entries have this many bytes.

        Raises:
            InvalidRequest: it is too long.
        """
        instead = 'send fewer inputs, reduce `dimensions`, or set `encoding_format` to "base64"'
        check_length(entries, instead)


EMBEDDINGS = EmbeddingsOperation()
