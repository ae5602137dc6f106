"""How vLLM runs a chat."""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from inference.agent.engines.vllm.runners.runner import Runner
from inference.operations.chat import CHAT


class ChatRunner(Runner):
    """On `OpenAIServingChat`."""

    request_model = ChatCompletionRequest
    endpoint = "openai_serving_chat"
    answers = CHAT

    def is_lean(self, request: Any) -> bool:
        """Log-probabilities, tools and choices take the full path."""
        return not (request.n or 1) > 1 and not request.logprobs and not request.tools

    async def prompts(self, endpoint: Any, request: Any) -> Any:
        """Rendered by the chat template."""
        rendered = await endpoint.render_chat_request(request)
        return rendered if isinstance(rendered, ErrorResponse) else rendered[1]

    async def create(self, endpoint: Any, request: Any) -> Any:
        """As vLLM's server does."""
        return await endpoint.create_chat_completion(request)

    def max_tokens(self, request: Any) -> int | None:
        """The newer field takes precedence."""
        wanted: int | None = request.max_completion_tokens
        return super().max_tokens(request) if wanted is None else wanted

    def wants_logprobs(self, request: Any) -> bool:
        """If the request sets `logprobs`."""
        return bool(request.logprobs)

    def uses_tools(self, request: Any) -> bool:
        """If the request names any that may be called."""
        return bool(request.tools) and request.tool_choice != "none"
