"""The deliberate differences from vLLM's server: the reason by a pattern of node ids.

`docs/api.md` has them as a table: "Differences from vLLM's own server".
"""

from __future__ import annotations

_NO_MODEL = "the request has no `model`, which is required: each tenant has several"
_BEAMS = "beam search is refused"
_TRUNCATED = "`truncate_prompt_tokens` is refused: an answer to half a prompt surprises"
_LAST_CHUNK = "the finish reason has a chunk of its own, as OpenAI's has, without text or tokens"
_MESSAGE = "an error's message is a sentence that names the limit, not one of Pydantic"
_ELSEWHERE = "the path is not served: the refusal says what to use instead"
_ADAPTERS = "`lora_path` is the id of a file, never a path of the server"
_VECTORS = "vectors are of length 1, and of 4-byte numbers: other forms are refused by name"
_NULLS = "empty fields are left out rather than null, as OpenAI's SDK expects"
_SILENT = "the server tells nothing of itself without a key"

DIFFERENCES: dict[str, str] = {
    "*/test_completion.py::test_batch_completions*": _BEAMS,
    "*/test_completion.py::test_completion_truncation_side*": _TRUNCATED,
    "*/test_chat.py::test_long_seed*": _MESSAGE,
    "*/test_prompt_validation.py::test_empty_prompt*": _MESSAGE,
    "*/test_chat.py::test_prompt_logprobs_chat*None*": _NULLS,
    "*/test_completion.py::test_prompt_logprobs_completion*None*": _NULLS,
    "*/test_return_token_ids.py::test_basic_completion_with_emoji*False*": _NULLS,
    "*/test_return_token_ids.py::test_basic_completion_with_emoji*None*": _NULLS,
    "*/test_chat.py::test_invocations*": _ELSEWHERE,
    "*/test_chat.py::test_chat_completion_stream_options*": _LAST_CHUNK,
    "*/test_chat.py::test_chat_streaming*": _LAST_CHUNK,
    "*/test_chat_completion.py::test_kv_transfer*": (
        "`kv_transfer_params` has no effect: a client must not choose what a cache holds"
    ),
    "*/test_messages.py::test_anthropic_streaming_cache_usage*": (
        "nothing is told of what was written to the cache: it has no price"
    ),
    "*/test_function_call.py::test_function_calling_with_streaming_types*": (
        "a stream that was cut ends with `response.incomplete`, as OpenAI's does"
    ),
    "*/test_batched_chat_completions.py::*": _ELSEWHERE,
    "*/test_generative_scoring_e2e.py::*": _ELSEWHERE,
    "*/responses/test_basic.py::*": _NO_MODEL,
    "*/responses/test_stateful.py::*": _NO_MODEL,
    "*/test_simple.py::test_enable_response_messages*": (
        "`enable_response_messages` has no effect: a prompt is not returned"
    ),
    "*/test_lora_adapters.py::*": _ADAPTERS,
    "*/test_tokenization.py::test_tokenizer_info*": _SILENT,
    "*/test_basic.py::test_show_version*": _SILENT,
    "*/pooling/*::test_pooling_not_supported*": _MESSAGE,
    "*/embed/test_online.py::test_negative_token_ids*": _MESSAGE,
    "*/embed/test_online.py::test_params_not_supported*": _MESSAGE,
    "*/pooling/*::test_invocations*": _ELSEWHERE,
    "*/embed/test_online.py::test_padding*": _VECTORS,
    "*/embed/test_online.py::test_*embed_dtype_and_endianness*": _VECTORS,
    "*/embed/test_online.py::test_use_activation*": _VECTORS,
    "*/test_cohere_*": "Cohere's `/v2/embed` is not served: `/v1/embeddings` is",
}
