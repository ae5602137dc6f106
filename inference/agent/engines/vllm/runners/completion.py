"""How vLLM runs a completion."""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.openai.completion.protocol import CompletionRequest

from inference.agent.engines.vllm.runners.runner import Runner
from inference.operations.completion import COMPLETION


class CompletionRunner(Runner):
    """On `OpenAIServingCompletion`."""

    request_model = CompletionRequest
    endpoint = "openai_serving_completion"
    answers = COMPLETION

    def is_lean(self, request: Any) -> bool:
        """Log-probabilities, echoes, token ids and several prompts or choices take the full
        path."""
        prompt = request.prompt
        single = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))
        plain = request.logprobs is None and not request.echo and not request.suffix
        returns = request.return_token_ids or request.prompt_logprobs is not None
        return single and plain and not returns and not (request.n or 1) > 1

    async def prompts(self, endpoint: Any, request: Any) -> Any:
        """Tokenized without a template."""
        return await endpoint.render_completion_request(request)

    async def create(self, endpoint: Any, request: Any) -> Any:
        """As vLLM's server does."""
        return await endpoint.create_completion(request)

    def wants_logprobs(self, request: Any) -> bool:
        """If the request sets `logprobs`, even to 0: then only the token's own."""
        return request.logprobs is not None
