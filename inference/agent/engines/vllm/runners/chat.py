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

    def read(self, endpoint: Any, fields: dict[str, Any]) -> Any:
        """As the runner says."""
        request = super().read(endpoint, fields)
        if request.stream and request.echo and not request.logprobs:
            # vLLM would compute the prompt's log-probabilities, which no chunk has.
            request.top_logprobs = None
        return request

    def is_lean(self, request: Any) -> bool:
        """Log-probabilities, tools, choices, echoes and token ids take the full path."""
        plain = not request.logprobs and not request.tools and not request.echo
        returns = request.return_token_ids or request.prompt_logprobs is not None
        return plain and not returns and not (request.n or 1) > 1

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

    def returns_prompt_logprobs(self, request: Any) -> bool:
        """As the runner says; an echo has them too."""
        return request.echo or super().returns_prompt_logprobs(request)

    def uses_tools(self, request: Any) -> bool:
        """If the request names any that may be called."""
        return bool(request.tools) and request.tool_choice != "none"

    def must_call(self, request: Any) -> bool:
        """If it requires a tool, or names the one."""
        return self.uses_tools(request) and request.tool_choice != "auto"
