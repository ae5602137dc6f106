"""Embeddings, scores and rankings."""

from __future__ import annotations

from typing import Literal

from tenants.api.openai.shapes.base import Open, PromptUsage, Shape


class EmbeddingsRequest(Open):
    """Inputs, as texts or as tokens, and the format of their vectors."""

    model: str
    input: str | list[str | int | list[int]]
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None
    truncate_prompt_tokens: int | None = None
    user: str | None = None


class Embedding(Shape):
    """The vector of one input: numbers, or 4-byte floats encoded in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Shape):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PromptUsage


class ScoreRequest(Open):
    """Texts to compare, in one of the pairs of fields that vLLM accepts."""

    model: str
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    queries: str | list[str] | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    truncate_prompt_tokens: int | None = None


class ScoreOfPair(Shape):
    index: int
    object: Literal["score"]
    score: float


class Scores(Shape):
    """A score for each pair of texts."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreOfPair]
    usage: PromptUsage


class RerankRequest(Open):
    """A query, and documents to rank by how well they answer it."""

    model: str
    query: str
    documents: str | list[str]
    top_n: int | None = None
    truncate_prompt_tokens: int | None = None


class RankedText(Shape):
    text: str


class RankedDocument(Shape):
    index: int
    document: RankedText
    relevance_score: float


class Reranking(Shape):
    """The documents, the best match for the query first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: PromptUsage
