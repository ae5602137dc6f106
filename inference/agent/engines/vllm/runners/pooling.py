"""How vLLM embeds and scores texts."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from array import array
from typing import Any, ClassVar

import torch
from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreDataRequest
from vllm.outputs import PoolingRequestOutput, ScoringRequestOutput

from inference.errors import InvalidRequest
from inference.operations.pooling.embeddings import EMBEDDINGS
from inference.operations.pooling.pooling import AnswerMetadata, Vector
from inference.operations.pooling.scoring import SCORE, ScoringOperation

Fields = dict[str, Any]


class Pooler(ABC):
    """One per pooling operation, without state. Requests, endpoints and contexts
    (`PoolingServeContext`) are vLLM's own objects, which have no types."""

    endpoint: ClassVar[str]
    """The attribute of vLLM's application state that serves it (`init_app_state`)."""

    @abstractmethod
    def read(self, fields: Fields) -> Any:
        """The fields as the endpoint's request object.

        Raises:
            ValidationError: they are not valid.
        """

    @abstractmethod
    def keep(self, fields: Fields, path: str, at: int, output: PoolingRequestOutput) -> Any:
        """What the answer needs of the computed prompt at `path` in the body.

        Raises:
            InvalidRequest: it can't be answered.
        """

    def check(self, kept: Any, count: int) -> None:
        """Check, by what was kept of the first of `count` prompts, that the answer won't be too
        long.

        Raises:
            InvalidRequest: it will.
        """
        return

    @abstractmethod
    async def answer(
        self, fields: Fields, kept: list[Any], metadata: AnswerMetadata, processor: Any, ctx: Any
    ) -> bytes:
        """The whole answer, from what was kept of each prompt.

        Raises:
            InvalidRequest: it would be too long.
        """


class EmbeddingsPooler(Pooler):
    """On `ServingEmbedding`. Each vector is encoded as it comes: all together would take long."""

    endpoint = "serving_embedding"

    def read(self, fields: Fields) -> Any:
        """As the pooler says."""
        return EmbeddingCompletionRequest.model_validate(fields)

    def keep(self, fields: Fields, path: str, at: int, output: PoolingRequestOutput) -> bytes:
        """As the pooler says: its entry in the answer."""
        return EMBEDDINGS.entry(at, vector_of(output, path), fields)

    def check(self, kept: Any, count: int) -> None:
        """As the pooler says; all have about the same length."""
        EMBEDDINGS.check_bytes(count * len(kept))

    async def answer(
        self, fields: Fields, kept: list[Any], metadata: AnswerMetadata, processor: Any, ctx: Any
    ) -> bytes:
        """As the pooler says."""
        return EMBEDDINGS.whole(kept, metadata)


class ScoringPooler(Pooler):
    """On `ServingScores`, which compares vectors, or has the model read both texts together."""

    endpoint = "serving_scores"

    def __init__(self, operation: ScoringOperation) -> None:
        self._operation = operation

    def read(self, fields: Fields) -> Any:
        """As the pooler says; all pairs of field names mean the same."""
        if self._operation is not SCORE:
            return RerankRequest.model_validate(fields)
        one, other = SCORE.pair(fields)
        rest = {name: value for name, value in fields.items() if name not in (one, other)}
        given = {"data_1": fields[one], "data_2": fields[other]}
        return ScoreDataRequest.model_validate(rest | given)

    def keep(self, fields: Fields, path: str, at: int, output: PoolingRequestOutput) -> Any:
        """As the pooler says: the output itself."""
        return output

    async def answer(
        self, fields: Fields, kept: list[Any], metadata: AnswerMetadata, processor: Any, ctx: Any
    ) -> bytes:
        """As the pooler says."""
        ctx.final_res_batch = kept
        scores = await asyncio.to_thread(_scores, processor, ctx)
        if not all(map(math.isfinite, scores)):
            raise InvalidRequest("The model's score for one of the pairs is not finite.")
        return self._operation.answer(fields, scores, metadata)


def vector_of(output: PoolingRequestOutput, path: str) -> Vector:
    """The vector of the text at `path`.

    Raises:
        InvalidRequest: the model has none for this text.
    """
    vector = array("f", output.outputs.data.tolist())
    if not math.isfinite(sum(vector)):
        raise InvalidRequest(f"The model's vector for `{path}` is not finite.", param=path)
    return vector


@torch.inference_mode()
def _scores(processor: Any, ctx: Any) -> list[float]:
    processor.post_process_online(ctx)
    return [ScoringRequestOutput.from_base(one).outputs.score for one in ctx.final_res_batch]
