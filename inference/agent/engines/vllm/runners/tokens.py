"""How vLLM tokenizes and detokenizes text."""

from __future__ import annotations

import asyncio
from typing import Any

from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)

from inference.agent.engines.vllm.errors import of_info
from inference.agent.engines.vllm.runners.runner import Inquiry
from inference.errors import InvalidRequest


class TokenizeInquiry(Inquiry):
    """On `ServingTokenization`."""

    endpoint = "serving_tokenization"

    async def answer(self, endpoint: Any, fields: dict[str, Any]) -> dict[str, Any]:
        """As the inquiry says. The tokens as text are made on a thread: there may be many."""
        wants_texts = fields.pop("return_token_strs", False)
        kind = TokenizeChatRequest if "messages" in fields else TokenizeCompletionRequest
        result = await endpoint.create_tokenize(kind.model_validate(fields), None)
        if isinstance(result, ErrorResponse):
            raise of_info(result.error)
        texts = None
        if wants_texts:
            tokenizer = endpoint.renderer.get_tokenizer()
            texts = await asyncio.to_thread(tokenizer.convert_ids_to_tokens, result.tokens)
        return {
            "count": result.count,
            "max_model_len": result.max_model_len,
            "tokens": result.tokens,
            "token_strs": texts,
        }


class DetokenizeInquiry(Inquiry):
    """On `ServingTokenization`."""

    endpoint = "serving_tokenization"

    async def answer(self, endpoint: Any, fields: dict[str, Any]) -> dict[str, Any]:
        """As the inquiry says."""
        known = len(endpoint.renderer.get_tokenizer())
        if fields["tokens"] and (highest := max(fields["tokens"])) >= known:
            raise InvalidRequest(
                f"`tokens` has the token {highest}: the highest token of this model is "
                f"{known - 1}.",
                param="tokens",
            )
        result = await endpoint.create_detokenize(DetokenizeRequest.model_validate(fields), None)
        if isinstance(result, ErrorResponse):
            raise of_info(result.error)
        return {"prompt": result.prompt}
