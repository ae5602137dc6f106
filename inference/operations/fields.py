"""The first look at a generating request's fields in the agent, the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.errors import InvalidRequest

SAMPLING = frozenset(
    {
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
)
"""What a client may set of any request that generates text. Not here are vLLM's fields by which a
client could say who it is, where its cache lies or what the server should run (`cache_salt`,
`priority`, `request_id`, `kv_transfer_params`, `chat_template`, ...)."""

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


def check_fields(body: dict[str, Any]) -> None:
    """See that the body asks for nothing that no engine does.

    Raises:
        InvalidRequest: it does.
    """
    for name, (harmless, instead) in UNSERVED.items():
        if (given := body.get(name)) and given != harmless:
            raise InvalidRequest(f"`{name}` is not supported: {instead}.", param=name)
