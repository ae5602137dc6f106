"""How vLLM runs requests of the Responses API: as the chats that the operation made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMValidationError

from inference.agent.engines.vllm.errors import as_error, of_info
from inference.agent.engines.vllm.runners.chat import ChatRunner
from inference.agent.engines.vllm.runners.runner import Inquiry
from inference.errors import ContextLengthExceeded
from inference.operations.responses.input_tokens import INPUT_TOKENS


class _Chat(ChatCompletionRequest):  # type: ignore[misc]  # vLLM is untyped here
    """`truncation`: whether its first messages may be left out, to fit into the context."""

    truncation: str = "disabled"

    def build_tok_params(self, model_config: Any) -> Any:
        """As vLLM does, but an error names the field that clients know."""
        try:
            return super().build_tok_params(model_config)
        except VLLMValidationError as error:
            message = str(error.args[0]).replace("max_completion_tokens", "max_output_tokens")
            raise VLLMValidationError(message, parameter="max_output_tokens") from None


class _Counted(ChatCompletionRequest):  # type: ignore[misc]  # vLLM is untyped here
    """A chat that may be longer than the context, because it is only counted."""

    def build_tok_params(self, model_config: Any) -> Any:
        """As vLLM does, without the context's limit."""
        return replace(super().build_tok_params(model_config), max_total_tokens=None)


class InputTokensInquiry(Inquiry):
    """Counts the tokens of the prompt that the chat template renders."""

    endpoint = "openai_serving_chat"

    async def answer(self, endpoint: Any, fields: dict[str, Any]) -> dict[str, Any]:
        """As the inquiry says."""
        rendered = await endpoint.render_chat_request(_Counted.model_validate(fields))
        if isinstance(rendered, ErrorResponse):
            raise of_info(rendered.error)
        return INPUT_TOKENS.answer(sum(len(prompt["prompt_token_ids"]) for prompt in rendered[1]))


class ResponsesRunner(ChatRunner):
    """On `OpenAIServingChat`."""

    request_model = _Chat

    async def prompts(self, endpoint: Any, request: Any) -> Any:
        """As the runner says."""
        await _shorten(endpoint, request)
        return await super().prompts(endpoint, request)

    async def create(self, endpoint: Any, request: Any) -> Any:
        """As the runner says."""
        await _shorten(endpoint, request)
        return await super().create(endpoint, request)


async def _shorten(endpoint: Any, request: Any) -> None:
    """If the request allows it, leave out as few of its first messages as needed to fit, but never
    the system's. One that doesn't fit even so is left as it is, for vLLM to refuse."""
    if request.truncation != "auto" or await _fits(endpoint, request):
        return
    messages = request.messages
    begin = 1 if messages[0]["role"] == "system" else 0
    # A tool's result must not come first, without its call; and something has to stay.
    starts = [i for i in range(begin + 1, len(messages)) if messages[i]["role"] != "tool"]
    while starts:
        middle = len(starts) // 2
        shorter = [*messages[:begin], *messages[starts[middle] :]]
        if await _fits(endpoint, request.model_copy(update={"messages": shorter})):
            request.messages = shorter
            starts = starts[:middle]
        else:
            starts = starts[middle + 1 :]


async def _fits(endpoint: Any, request: Any) -> bool:
    """Whether the context has room for the prompt and for the answer that the request asks for, or
    half of the context if it asks for more."""
    try:
        rendered = await endpoint.render_chat_request(request)
    except Exception as error:
        return not isinstance(as_error(error), ContextLengthExceeded)
    if isinstance(rendered, ErrorResponse):
        return not isinstance(of_info(rendered.error), ContextLengthExceeded)
    limit = endpoint.model_config.max_model_len
    room = min(request.max_completion_tokens or 1, limit // 2)
    return all(len(prompt["prompt_token_ids"]) + room <= limit for prompt in rendered[1])
