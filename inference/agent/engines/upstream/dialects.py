"""What OpenAI-compatible servers take, and in which words.

A field that a server does not have is refused by name: many ignore what they do not know, and the
answer would be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from inference.errors import InvalidRequest
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION
from inference.operations.operation import Operation
from inference.operations.pooling.embeddings import EMBEDDINGS

STANDARD = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "n",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt",
        "reasoning_effort",
        "response_format",
        "seed",
        "stop",
        "stream",
        "suffix",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
    }
)
"""Of OpenAI's own API."""
SIMPLE = STANDARD - {
    "logit_bias", "logprobs", "n", "parallel_tool_calls", "reasoning_effort", "suffix",
    "tool_choice", "top_logprobs",
}  # fmt: skip
LOCAL = frozenset({"ignore_eos", "min_p", "repetition_penalty", "top_k"})
"""What servers of open models usually add."""

WITHOUT_EFFECT: Mapping[str, Any] = {
    "add_generation_prompt": True,
    "continue_final_message": False,
    "echo": False,
    "ignore_eos": False,
    "include_reasoning": True,
    "include_stop_str_in_output": False,
    "logprobs": False,
    "min_p": 0,
    "min_tokens": 0,
    "n": 1,
    "parallel_tool_calls": True,
    "repetition_penalty": 1,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "tool_choice": "auto",
    "top_k": 0,
    "top_logprobs": 0,
}
"""Values that change nothing: with them a field may be left out. `top_k` may be -1 too."""


@dataclass(frozen=True, slots=True)
class AdapterDialect:
    """How a server loads adapters while it runs, by `load_lora_adapter` and
    `unload_lora_adapter`."""

    below: str
    """Where these two are, from the server's root."""
    field: str
    """That of a request in which the adapter is named."""
    flags: str
    """What the server must have been started with."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server."""

    name: str
    """What operators and errors call it."""
    owner: str
    """`owned_by` of the models that it lists; empty: any other."""
    fields: frozenset[str]
    """Those of our operations' fields that it has."""
    hosts: tuple[str, ...] = ()
    """Ends of the names of its hosts, if it is a service: whose models it lists says nothing."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    limit_of_chats: str = "max_tokens"
    """Its name for the bound of a chat's output."""
    least_temperature: float = 0
    """Below it the likeliest token is asked for: the server would fail on a number that is not
    finite."""
    schemas: bool = False
    """Whether it constrains an answer to a JSON schema."""
    named_tools: bool = True
    """Whether `tool_choice` may name a tool; otherwise that tool is sent alone, as required."""
    running_usage: bool = False
    """Whether each chunk can have the usage so far (`continuous_usage_stats`)."""
    salted: bool = False
    """Whether its prefix cache can be divided by a salt (`cache_salt`)."""
    tagged_reasoning: bool = False
    """Whether reasoning comes in the content, each piece as `<reasoning>...</reasoning>`."""
    adapters: AdapterDialect | None = None
    """None: it loads none while it runs."""
    file_adapters: bool = False
    """Whether it says with which files of adapters it was started, and takes one by its place among
    them (`started`)."""
    listed_adapters: bool = False
    """Whether the adapters that it was started with are models in its list (`started`)."""
    finishes: bool = False
    """Whether it goes on with an answer whose reader has left."""

    @property
    def has_adapters(self) -> bool:
        return bool(self.adapters or self.file_adapters or self.listed_adapters)

    @property
    def option(self) -> str:
        """Its value for `--upstream-dialect`."""
        return self.name.lower().replace(" ", "-") if self.owner or self.hosts else "other"

    def body(self, operation: Operation, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of an admitted request as this server takes them, without the model.

        Raises:
            InvalidRequest: it does not have one of them.
        """
        kept = dict(fields)
        if kept.get("top_k") == 1 and "top_k" not in self.fields:  # the likeliest token alone
            del kept["top_k"]
            kept["temperature"] = 0
        if (asked := kept.get("temperature")) is not None and asked < self.least_temperature:
            kept["temperature"] = 0
        for name in fields.keys() - self.fields:
            if name in kept and not _without_effect(name, kept.pop(name)):
                raise self._lacks(name)
        if not self.named_tools and isinstance(choice := kept.get("tool_choice"), dict):
            kept |= _tool_alone(kept["tools"], choice["function"]["name"])
        if not self.schemas and _wants_schema(kept.get("response_format")):
            raise InvalidRequest(
                f"`response_format` with a schema is not supported: this model is served by "
                f"{self.name}.",
                param="response_format",
            )
        older, newer = kept.pop("max_tokens", None), kept.pop("max_completion_tokens", None)
        if (most := older if newer is None else newer) is not None:
            kept[self.limit_of_chats if operation is CHAT else "max_tokens"] = most
        usage = {"include_usage": True}
        if self.running_usage:
            usage["continuous_usage_stats"] = True
        named = {self.renamed.get(name, name): value for name, value in kept.items()}
        return named | {"stream": True, "stream_options": usage}

    def embeddings(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The same for embeddings. All servers send numbers if they are not asked for base64, which
        some of them ignore.

        Raises:
            InvalidRequest: it does not have one of them.
        """
        kept = {name: value for name, value in fields.items() if name != "encoding_format"}
        for name in kept.keys() - {"input", "dimensions"} - self.fields:
            raise self._lacks(name)
        return kept

    def _lacks(self, name: str) -> InvalidRequest:
        return InvalidRequest(
            f"`{name}` is not supported: this model is served by {self.name}.", param=name
        )


def _without_effect(name: str, value: Any) -> bool:
    if name == "top_k" and value == -1:
        return True
    return name in WITHOUT_EFFECT and bool(value == WITHOUT_EFFECT[name])


def _tool_alone(tools: list[dict[str, Any]], name: str) -> dict[str, Any]:
    named = [tool for tool in tools if tool["function"]["name"] == name]
    return {"tools": named, "tool_choice": "required"}


def _wants_schema(response_format: Any) -> bool:
    return isinstance(response_format, dict) and response_format.get("type") == "json_schema"


VLLM = Dialect(
    "vLLM", "vllm",
    CHAT.accepted | COMPLETION.accepted | EMBEDDINGS.accepted | {"chat_template_kwargs"},
    schemas=True, running_usage=True, salted=True,
    adapters=AdapterDialect("/v1", "model", "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
)  # fmt: skip
OPENAI = Dialect("OpenAI", "openai", STANDARD, limit_of_chats="max_completion_tokens", schemas=True)
OTHER = Dialect("an OpenAI-compatible server", "", STANDARD)
DIALECTS = (
    VLLM,
    OPENAI,
    Dialect("Azure OpenAI", "", STANDARD, (".openai.azure.com", ".cognitiveservices.azure.com"),
            limit_of_chats="max_completion_tokens", schemas=True),
    Dialect("Amazon Bedrock", "", SIMPLE - {"prompt"} | {"reasoning_effort", "tool_choice"},
            (".amazonaws.com", ".api.aws"), limit_of_chats="max_completion_tokens",
            tagged_reasoning=True),
    Dialect("Vertex AI", "", STANDARD - {
                "logit_bias", "logprobs", "parallel_tool_calls", "prompt", "suffix",
                "top_logprobs"},
            ("aiplatform.googleapis.com",), schemas=True),
    Dialect("SGLang", "sglang", STANDARD - {"suffix"} | LOCAL | {"min_tokens", "stop_token_ids"},
            schemas=True, adapters=AdapterDialect(
                "", "lora_path", "--enable-lora, --max-lora-rank and --lora-target-modules")),
    Dialect("llama.cpp", "llamacpp", STANDARD - {"suffix", "reasoning_effort"} | LOCAL,
            renamed={"repetition_penalty": "repeat_penalty"}, schemas=True, named_tools=False,
            file_adapters=True),
    Dialect("llama-cpp-python", "me", STANDARD - {"n", "reasoning_effort", "parallel_tool_calls"}
            | {"min_p", "top_k", "repetition_penalty"},
            renamed={"repetition_penalty": "repeat_penalty"}),
    Dialect("ms-swift", "swift", frozenset({
                "logprobs", "max_completion_tokens", "max_tokens", "messages", "stream",
                "temperature", "top_k", "top_logprobs", "top_p"}),
            least_temperature=0.01, listed_adapters=True, finishes=True),
    Dialect("Ollama", "library", SIMPLE, schemas=True),
    OTHER,
)  # fmt: skip
BY_OPTION = {one.option: one for one in DIALECTS}


def dialect_of(url: str, card: Mapping[str, Any]) -> Dialect:
    """The dialect of the server at `url`, which lists this model."""
    host, owner = urlsplit(url).hostname or "", card.get("owned_by")
    for one in DIALECTS:
        if one.hosts and host.endswith(one.hosts):
            return one
    return next((one for one in DIALECTS if one.owner and one.owner == owner), OTHER)
