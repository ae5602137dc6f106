"""`POST /v1/score` and `POST /v1/rerank`, in vLLM's shapes.

How texts are scored depends on the model: an embedding model compares their vectors, a
cross-encoder reads both texts together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from operator import mul
from typing import Any

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

PAIRS = (("queries", "documents"), ("text_1", "text_2"), ("data_1", "data_2"), ("queries", "items"))
"""vLLM's names of the two fields of texts that are compared."""
NAMES = frozenset(name for pair in PAIRS for name in pair)


class ScoringOperation(PoolingOperation):
    """Compares two fields of texts: one text with each of the other field, or pairwise."""

    @abstractmethod
    def pair(self, fields: dict[str, Any]) -> tuple[str, str]:
        """The names of the two fields.

        Raises:
            InvalidRequest: they are missing.
        """

    @abstractmethod
    def answer(
        self, fields: dict[str, Any], scores: Sequence[float], metadata: AnswerMetadata
    ) -> bytes:
        """The answer to what `allowed` returned, with the score of each pair.

        Raises:
            InvalidRequest: it would be too long.
        """

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Operation`. Checks that the two fields have matching numbers of texts."""
        kept = super().allowed(body)
        one, other = self.pair(kept)
        counts = [
            len(value) if isinstance(value := kept[name], list) else 1 for name in (one, other)
        ]
        if counts[0] not in (1, counts[1]):
            raise InvalidRequest(
                f"`{one}` has {counts[0]} texts and `{other}` has {counts[1]}: `{one}` "
                f"must have one text, or as many as `{other}`.",
                param=one,
            )
        return kept

    def texts(self, fields: dict[str, Any]) -> list[tuple[str, Text]]:
        """The texts of the first field, then those of the second."""
        found: list[tuple[str, Text]] = []
        for name in self.pair(fields):
            if isinstance(given := fields[name], list):
                found += [(f"{name}[{i}]", text) for i, text in enumerate(given)]
            else:
                found.append((name, given))
        return found

    def plain_answer(
        self, fields: dict[str, Any], vectors: Sequence[Vector], metadata: AnswerMetadata
    ) -> bytes:
        """See `PoolingOperation`. A score is the vectors' dot product, as they have length 1."""
        given = fields[self.pair(fields)[0]]
        count = len(given) if isinstance(given, list) else 1
        ones, others = list(vectors[:count]), vectors[count:]
        if count == 1:
            ones *= len(others)
        scores = [sum(map(mul, a, b)) for a, b in zip(ones, others, strict=True)]
        return self.answer(fields, scores, metadata)

    def _call(self, model: str, pairs: int, body: bytes) -> Call:
        """The call for so many pairs. Depending on the model a prompt is a text or a pair; in the
        latter case one text may be part of every prompt."""
        require_model(model)
        workload = Workload(prompts=2 * pairs, rereads=pairs, max_tokens=0)
        return Call(self, model, workload=workload, body=body)


class _ScoreFields(msgspec.Struct):
    model: str
    data_1: msgspec.Raw = NULL
    data_2: msgspec.Raw = NULL
    documents: msgspec.Raw = NULL
    items: msgspec.Raw = NULL
    queries: msgspec.Raw = NULL
    text_1: msgspec.Raw = NULL
    text_2: msgspec.Raw = NULL
    truncate_prompt_tokens: int | None = None


class ScoreOperation(ScoringOperation):
    """Scores how similar texts are."""

    name = "score"
    path = "/v1/score"
    also_at = ("/score",)
    id_prefix = "score"
    decoder = msgspec.json.Decoder(_ScoreFields)
    accepted = NAMES | {"truncate_prompt_tokens"}

    def parse(self, body: bytes) -> Call:
        """See `Operation`."""
        fields: _ScoreFields = decode(self.decoder, body)
        given = {name: value for name in _ScoreFields.__struct_fields__
                 if isinstance(value := getattr(fields, name), msgspec.Raw)
                 and bytes(value) != b"null"}  # fmt: skip
        pairs = max(count_texts(given[name], name)[0] for name in self.pair(given))
        return self._call(fields.model, pairs, body)

    def pair(self, fields: dict[str, Any]) -> tuple[str, str]:
        """The one pair of PAIRS whose two names are in `fields`, and no other name."""
        given = fields.keys() & NAMES
        for pair in PAIRS:
            if given == {*pair}:
                return pair
        raise InvalidRequest("Send `queries` and `documents` only.", param="queries")

    def answer(
        self, fields: dict[str, Any], scores: Sequence[float], metadata: AnswerMetadata
    ) -> bytes:
        """See `Operation`."""
        data = [{"index": i, "object": "score", "score": one} for i, one in enumerate(scores)]
        head = {
            "id": metadata.id,
            "object": "list",
            "created": metadata.created,
            "model": metadata.model,
        }
        return _encode(head | {"data": data, "usage": metadata.usage})


class _RerankFields(msgspec.Struct):
    model: str
    query: str
    documents: msgspec.Raw = NULL
    top_n: int | None = None
    truncate_prompt_tokens: int | None = None


class Rerank(ScoringOperation):
    """Sorts documents by how well they answer a query, best first."""

    name = "rerank"
    path = "/v1/rerank"
    also_at = ("/rerank", "/v2/rerank")
    id_prefix = "rerank"
    decoder = msgspec.json.Decoder(_RerankFields)
    accepted = frozenset({"documents", "query", "top_n", "truncate_prompt_tokens"})

    def parse(self, body: bytes) -> Call:
        """See `Operation`."""
        fields: _RerankFields = decode(self.decoder, body)
        if fields.top_n is not None and fields.top_n < 0:
            raise InvalidRequest(
                f"`top_n` is {fields.top_n}: it must be at least 0.", param="top_n"
            )
        if bytes(fields.documents) == b"null":
            raise InvalidRequest("You must provide a documents parameter.", param="documents")
        count, _ = count_texts(fields.documents, "documents")
        return self._call(fields.model, count, body)

    def pair(self, fields: dict[str, Any]) -> tuple[str, str]:
        """The query and the documents."""
        return "query", "documents"

    def answer(
        self, fields: dict[str, Any], scores: Sequence[float], metadata: AnswerMetadata
    ) -> bytes:
        """See `Operation`."""
        given = fields["documents"]
        documents = given if isinstance(given, list) else [given]
        results = [
            {"index": i, "document": {"text": documents[i]}, "relevance_score": scores[i]}
            for i in sorted(range(len(scores)), key=lambda i: -scores[i])
        ]
        results = results[: fields.get("top_n") or None]
        head = {"id": metadata.id, "model": metadata.model, "usage": metadata.usage}
        answer = _encode(head | {"results": results})
        check_length(len(answer), "set `top_n` to receive only the best results")
        return answer


SCORE, RERANK = ScoreOperation(), Rerank()
