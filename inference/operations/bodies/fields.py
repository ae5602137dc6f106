"""The agent's first checks of a generating request's fields, the same for every engine."""

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
"""The fields that clients may set in any request that generates text. Left out are vLLM's fields by
which a client could claim an identity, choose its cache or decide what the server runs
(`cache_salt`, `priority`, `request_id`, `kv_transfer_params`, `chat_template`, ...)."""

UNSERVED: Mapping[str, tuple[Any, str]] = {
    "audio": (None, "only text is supported"),
    "best_of": (1, "use `n`"),
    "function_call": (None, "use `tool_choice`"),
    "functions": (None, "use `tools`"),
    "guided_choice": (None, "use `structured_outputs`"),
    "guided_grammar": (None, "use `structured_outputs`"),
    "guided_json": (None, "use `response_format`"),
    "guided_regex": (None, "use `structured_outputs`"),
    "metadata": (None, "answers are not stored"),
    "modalities": (["text"], "only text is supported"),
    "moderation": (None, "use a model to classify the text"),
    "prediction": (None, "leave it out; the answer is the same"),
    "prompt_logprobs": (None, "use `echo` and `logprobs` of `/v1/completions`"),
    "store": (False, "answers are not stored"),
    "use_beam_search": (None, "use `n`"),
    "verbosity": ("medium", "state the wanted length in a message"),
    "web_search_options": (None, "the server does not search the web"),
}
"""Fields of OpenAI or vLLM that would change the answer, so ignoring them would give a wrong one.
Each with the value that changes nothing, and what to do instead."""


def check_fields(body: dict[str, Any]) -> None:
    """Check that the body has none of the UNSERVED fields.

    Raises:
        InvalidRequest: it has one, with a value that would change the answer.
    """
    for name, (harmless, instead) in UNSERVED.items():
        if (given := body.get(name)) and given != harmless:
            raise InvalidRequest(f"`{name}` is not supported: {instead}.", param=name)
