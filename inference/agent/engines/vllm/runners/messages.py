"""How vLLM runs requests of Anthropic's API: converted to chats."""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.anthropic.protocol import (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.generate.base.protocol import StreamOptions
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from inference.agent.engines.vllm.errors import of_info
from inference.agent.engines.vllm.runners.chat import ChatRunner
from inference.agent.engines.vllm.runners.runner import Inquiry


def _as_chat(endpoint: Any, kind: Any, fields: dict[str, Any]) -> Any:
    """The chat request that vLLM makes of the fields, for whichever model the endpoint has."""
    asked = kind.model_validate(fields | {"model": "any"})
    if "max_tokens" in fields:
        # Agents ask for 32,000 tokens whatever the model's context is, and vLLM would refuse that.
        asked.max_tokens = min(asked.max_tokens, endpoint.model_config.max_model_len - 1)
    chat = AnthropicServingMessages.to_chat_completion_request(
        asked, merge_inline_system=endpoint._merge_inline_system
    )
    chat.model = None
    return chat


class MessagesRunner(ChatRunner):
    """On `AnthropicServingMessages`, which is an `OpenAIServingChat`. Its own framing of the answer
    is not used: the gateway frames the chat's (`operations.messages.framing`)."""

    request_model = AnthropicMessagesRequest
    endpoint = "anthropic_serving_messages"

    def read(self, endpoint: Any, fields: dict[str, Any]) -> Any:
        """As the runner says."""
        chat = _as_chat(endpoint, self.request_model, fields)
        chat.request_id, chat.priority = fields["request_id"], fields["priority"]
        if chat.stream:
            chat.stream_options = StreamOptions(include_usage=True)
        return chat

    def is_lean(self, request: Any) -> bool:
        """Only the full path tells which stop sequence ended an answer."""
        return super().is_lean(request) and not request.stop


class CountTokensInquiry(Inquiry):
    """Counts the tokens of the prompt that the chat template renders."""

    endpoint = "anthropic_serving_messages"

    async def answer(self, endpoint: Any, fields: dict[str, Any]) -> dict[str, Any]:
        """As the inquiry says."""
        chat = _as_chat(endpoint, AnthropicCountTokensRequest, fields)
        rendered = await endpoint.render_chat_request(chat)
        if isinstance(rendered, ErrorResponse):
            raise of_info(rendered.error)
        return {"input_tokens": sum(len(prompt["prompt_token_ids"]) for prompt in rendered[1])}
