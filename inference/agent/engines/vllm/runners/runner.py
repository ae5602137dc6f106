"""How vLLM runs an operation: with which request model, on which of its endpoints.

A `Runner` generates; an `Inquiry` is answered from the tokenizer alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from inference.operations.openai import OpenAIOperation


class Runner(ABC):
    """One per operation, without state; `registry.py` names them.

    Requests, endpoints and prompts are vLLM's own objects, which have no types.
    """

    request_model: ClassVar[type[Any]]
    """Reads and validates a body."""
    endpoint: ClassVar[str]
    """The attribute of vLLM's application state that serves it (`init_app_state`)."""
    answers: ClassVar[OpenAIOperation[Any]]
    """The operation whose answers the endpoint gives."""

    def read(self, endpoint: Any, fields: dict[str, Any]) -> Any:
        """The fields as the endpoint's request object. May be called on a thread.

        Raises:
            ValidationError: they are not valid.
        """
        return self.request_model.model_validate(fields)

    @abstractmethod
    def is_lean(self, request: Any) -> bool:
        """Whether the answer is one text: then vLLM's serving layer has nothing to add."""

    @abstractmethod
    async def prompts(self, endpoint: Any, request: Any) -> Any:
        """The tokenized prompts of a lean request, or vLLM's `ErrorResponse`."""

    @abstractmethod
    async def create(self, endpoint: Any, request: Any) -> Any:
        """The endpoint's answer: events, a response or an `ErrorResponse`."""

    def max_tokens(self, request: Any) -> int | None:
        """The request's own bound on output tokens."""
        wanted: int | None = vars(request)["max_tokens"]  # the attribute warns of its deprecation
        return wanted

    def wants_logprobs(self, request: Any) -> bool:
        """Whether log-probabilities come with the tokens."""
        return False

    def returns_prompt_logprobs(self, request: Any) -> bool:
        """Whether a whole answer has a field for the prompt's log-probabilities."""
        return request.prompt_logprobs is not None

    def uses_tools(self, request: Any) -> bool:
        """Whether it needs a tool-call parser."""
        return False

    def must_call(self, request: Any) -> bool:
        """Whether its answer must be a tool call."""
        return False


class Inquiry(ABC):
    """One per operation that generates nothing, without state."""

    endpoint: ClassVar[str]
    """As a runner's."""

    @abstractmethod
    async def answer(self, endpoint: Any, fields: dict[str, Any]) -> dict[str, Any]:
        """The whole answer.

        Raises:
            ValidationError, InvalidRequest: the fields are wrong.
        """
