"""The first look at a request body, the same for every engine.

What isn't listed in FIELDS never reaches an engine: unknown fields are ignored as OpenAI ignores
them, and so is every field of vLLM by which a client could say who it is, where its cache lies or
what the server should run (`cache_salt`, `priority`, `request_id`, `kv_transfer_params`,
`chat_template`, ...). A list of what is allowed also holds for fields that vLLM has yet to invent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from inference.agent.engines.engine import Kind
from inference.errors import InvalidRequest

_SAMPLING = {
    "allowed_token_ids",
    "bad_words",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "min_p",
    "min_tokens",
    "n",
    "presence_penalty",
    "repetition_penalty",
    "response_format",
    "seed",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "stream",
    "structured_outputs",
    "temperature",
    "top_k",
    "top_p",
}

FIELDS: dict[Kind, set[str]] = {
    "chat": _SAMPLING
    | {
        "add_generation_prompt",
        "continue_final_message",
        "include_reasoning",
        "max_completion_tokens",
        "messages",
        "parallel_tool_calls",
        "reasoning_effort",
        "tool_choice",
        "tools",
        "top_logprobs",
    },
    "completion": _SAMPLING | {"add_special_tokens", "echo", "prompt", "suffix"},
}
"""What a client may set, by kind of request."""

UNSERVED: Mapping[str, tuple[Any, str]] = {
    "audio": (None, "only text is served"),
    "best_of": (1, "ask for choices with `n`"),
    "function_call": (None, "use `tool_choice`"),
    "functions": (None, "use `tools`"),
    "guided_choice": (None, "use `structured_outputs`"),
    "guided_grammar": (None, "use `structured_outputs`"),
    "guided_json": (None, "use `response_format`"),
    "guided_regex": (None, "use `structured_outputs`"),
    "modalities": (["text"], "only text is served"),
    "prompt_logprobs": (None, "use `echo` and `logprobs` of a completion"),
    "use_beam_search": (None, "ask for choices with `n`"),
    "web_search_options": (None, "nothing is searched"),
}
"""Fields of OpenAI's or vLLM's that would make another answer, so ignoring them would be to give a
wrong one. The value that changes nothing, and what to do instead."""

MAX_CONSTRAINT_BYTES = 64 << 10
"""Of a schema or grammar as JSON. One of a megabyte held everybody's streams up for minutes."""

MAX_VALUES = 50_000
"""Of a body, apart from the prompt's tokens. vLLM's reader finds fault with each wrong one, several
times, and everybody's streams stand still meanwhile."""

TEMPLATE_SWITCHES = ("enable_thinking", "thinking")
"""What a client may set in `chat_template_kwargs`; the rest could reach the tokenizer."""


def allowed(kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
    """The fields of `body` that a client may set; `body` is left as it is.

    Raises:
        InvalidRequest: there is no prompt, prompt or messages have a shape that no engine takes,
            something is asked for that none does, or it is too much.
    """
    _check_served(body)
    _check_size(body)
    if kind == "chat":
        _check_messages(body.get("messages"))
    else:
        _check_prompt(body.get("prompt"))
    kept = {name: value for name, value in body.items() if name in FIELDS[kind]}
    if kind == "chat" and (switches := _switches(body.get("chat_template_kwargs"))):
        kept["chat_template_kwargs"] = switches
    return kept


def choices_of(kind: Kind, body: dict[str, Any]) -> int:
    """How many texts the body asks for, `n` of each prompt; at least 1, whatever it holds."""
    n, prompts = body.get("n"), body.get("prompt") if kind == "completion" else None
    choices = max(1, n) if isinstance(n, int) else 1
    if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list):
        return len(prompts) * choices
    return choices


def _check_served(body: dict[str, Any]) -> None:
    for name, (harmless, instead) in UNSERVED.items():
        if (given := body.get(name)) and given != harmless:
            raise InvalidRequest(f"`{name}` is not supported: {instead}.", param=name)
    for name in _constraints(body):
        size = len(msgspec.json.encode(body.get(name)))
        if size > MAX_CONSTRAINT_BYTES:
            raise InvalidRequest(
                f"`{name}` has {size} bytes: it can have {MAX_CONSTRAINT_BYTES} at most.",
                param=name,
            )


def _check_size(body: dict[str, Any]) -> None:
    seen = 0
    rest: list[Any] = [{name: value for name, value in body.items() if name != "prompt"}]
    while rest:
        value = rest.pop()
        within = value.values() if isinstance(value, dict) else value
        seen += len(within)
        if seen > MAX_VALUES:
            raise InvalidRequest(f"The body holds more than {MAX_VALUES} values.")
        rest += (part for part in within if isinstance(part, dict | list))


def _constraints(body: dict[str, Any]) -> Iterator[str]:
    """The fields that answers are held to."""
    yield from ("response_format", "structured_outputs")
    if body.get("tool_choice") not in (None, "none", "auto"):
        yield "tools"


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list):
        raise InvalidRequest("`messages` must be an array of messages.", param="messages")
    if not messages:
        raise InvalidRequest("`messages` must hold at least one message.", param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"`messages[{i}]` must be an object with a `role`.", param=f"messages[{i}]"
            )
        param = f"messages[{i}].content"
        if message.get("content") is None and message["role"] != "assistant":
            raise InvalidRequest(f"`{param}` is missing.", param=param)
        _check_content(message.get("content"), param)


def _check_content(content: Any, param: str) -> None:
    """Text, or a list of text parts. An image or audio URL must not make the engine fetch it."""
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidRequest(f"`{param}` must be a string or an array of parts.", param=param)
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "refusal"):
            raise InvalidRequest(f"`{param}`: only parts of type `text` are served.", param=param)


def _check_prompt(prompt: Any) -> None:
    if prompt is None:
        raise InvalidRequest("You must provide a prompt parameter.", param="prompt")
    if not isinstance(prompt, str | list):
        raise InvalidRequest("`prompt` must be a string or an array.", param="prompt")
    if not prompt:
        raise InvalidRequest("`prompt` must not be empty.", param="prompt")
    if isinstance(prompt, list) and not (_are_texts(prompt) or _are_tokens(prompt)):
        if not all(isinstance(part, list) and _are_tokens(part) for part in prompt):
            raise InvalidRequest(
                "`prompt` must be an array of strings, of tokens, or of arrays of tokens; a token "
                "is an integer from 0.",
                param="prompt",
            )


def _are_texts(parts: list[Any]) -> bool:
    return all(isinstance(part, str) for part in parts)


def _are_tokens(parts: list[Any]) -> bool:
    return all(type(part) is int and part >= 0 for part in parts)


def _switches(given: Any) -> dict[str, bool]:
    if not isinstance(given, dict):
        return {}
    return {name: given[name] for name in TEMPLATE_SWITCHES if isinstance(given.get(name), bool)}
