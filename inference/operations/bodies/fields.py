"""The agent's first checks of a generating request's fields, the same for every engine."""

from __future__ import annotations

from collections.abc import Container, Mapping
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

OF_ANSWERS = frozenset(
    {"echo", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids"}
)
"""vLLM's fields that add something to an answer made of choices."""

UNSERVED: Mapping[str, tuple[Any, str]] = {
    "audio": (None, "only text is supported"),
    "best_of": (1, "use `n`"),
    "function_call": (None, "use `tool_choice`"),
    "functions": (None, "use `tools`"),
    "metadata": (None, "answers are not stored"),
    "modalities": (["text"], "only text is supported"),
    "moderation": (None, "use a model to classify the text"),
    "prediction": (None, "leave it out; the answer is the same"),
    "store": (False, "answers are not stored"),
    "verbosity": ("medium", "state the wanted length in a message"),
    "web_search_options": (None, "the server does not search the web"),
}
"""Fields of OpenAI that would change the answer, so ignoring them would give a wrong one. Each with
the value that changes nothing, and what to do instead."""

_CHOICES = "only answers made of choices have it: use `/v1/chat/completions`"
_MEDIA = (None, "only text is supported")
OF_VLLM: Mapping[str, tuple[Any, str]] = {
    "add_special_tokens": (False, "the chat template adds them"),
    "chat_template": (None, "the operator of the server chooses it"),
    "documents": (None, "put them into a message"),
    "echo": (False, _CHOICES),
    "guided_choice": (None, "use `structured_outputs`"),
    "guided_grammar": (None, "use `structured_outputs`"),
    "guided_json": (None, "use `response_format`"),
    "guided_regex": (None, "use `structured_outputs`"),
    "length_penalty": (1, "it is for beam search"),
    "logprob_token_ids": (None, "use `logprobs`"),
    "media_io_kwargs": _MEDIA,
    "mm_payload": _MEDIA,
    "mm_processor_kwargs": _MEDIA,
    "prompt_embeds": (None, "send the prompt as text or tokens"),
    "prompt_logprobs": (None, _CHOICES),
    "repetition_detection": (None, "use `repetition_penalty`"),
    "return_mm_kwargs": _MEDIA,
    "return_prompt_text": (None, "only a chat's answer is returned"),
    "return_token_ids": (False, _CHOICES),
    "return_token_offsets": (False, "use `/v1/tokenize`"),
    "return_tokens_as_token_ids": (False, _CHOICES),
    "routed_experts_prompt_start": (None, "the server does not report experts"),
    "thinking_token_budget": (None, "use `reasoning_effort`"),
    "truncate_prompt_tokens": (None, "shorten the prompt"),
    "truncation_side": (None, "shorten the prompt"),
    "use_beam_search": (None, "use `n`"),
    "vllm_xargs": (None, "the server takes no such arguments"),
    "watermarking": (None, "the server marks no answers"),
}
"""The same for fields of vLLM. Some APIs accept some of them (`Operation.accepted`)."""

IGNORED_OF_VLLM = frozenset(
    {
        "cache_salt",
        "ec_transfer_params",
        "kv_transfer_params",
        "priority",
        "request_id",
        "session_id",
        "stream_interval",
        "user",
    }
)
"""Fields of vLLM that have no effect, because a client must not decide them, or because they change
no answer."""


def check_fields(
    body: dict[str, Any],
    unserved: Mapping[str, tuple[Any, str]],
    accepted: Container[str] = (),
) -> None:
    """Check that the body has none of the unserved fields but those that are `accepted`.

    Raises:
        InvalidRequest: it has one, with a value that would change the answer.
    """
    for name, (harmless, instead) in unserved.items():
        if (given := body.get(name)) and given != harmless and name not in accepted:
            raise InvalidRequest(f"`{name}` is not supported: {instead}.", param=name)
