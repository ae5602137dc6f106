"""Paths of OpenAI's API and of vLLM's own server that are not served, with what clients do instead.

Paths that only a server's operator may use (`/sleep`, `/update_weights`, ...) are not listed: they
are answered as if nobody had heard of them.
"""

from __future__ import annotations

from typing import Final

_TEXT_ONLY = "Only text is supported."
_RENDER = "Prompts are rendered by the engine alone: `/v1/tokenize` returns a chat as tokens."
_HEALTH = "`/healthz` and `/readyz` say whether the server works."
_VECTORS = "Use `/v1/embeddings`, `/v1/score` or `/v1/rerank`."

INSTEAD: Final = {
    "/v1/moderations": (
        "Moderation is not supported. Ask a chat model to classify the text, with a "
        "`response_format` of type `json_schema` that lists the categories you need."
    ),
    "/v1/responses/compact": (
        "Compaction is not supported. Set `truncation` to `auto` to leave out the oldest messages."
    ),
    "/v1/chat/completions/batch": (
        "A request has one conversation. Send one request for each, or a file of requests to "
        "`/v1/batches`."
    ),
    "/v1/chat/completions/render": _RENDER,
    "/v1/completions/render": _RENDER,
    "/v1/audio/transcriptions": _TEXT_ONLY,
    "/v1/audio/translations": _TEXT_ONLY,
    "/v1/audio/speech": _TEXT_ONLY,
    "/v2/embed": "Cohere's form of embeddings is not supported. Use `/v1/embeddings`.",
    "/pooling": _VECTORS,
    "/classify": _VECTORS,
    "/generative_scoring": (
        "Labels are not scored. Ask `/v1/completions` for one token, with `logprobs`."
    ),
    "/inference/v1/generate": "Send the tokens as the `prompt` of `/v1/completions`.",
    "/invocations": "Send the request to the path of its kind, such as `/v1/chat/completions`.",
    "/ping": _HEALTH,
    "/load": _HEALTH,
    "/tokenizer_info": "Use `/v1/tokenize` and `/v1/detokenize`.",
    "/version": (
        "The server does not tell its version. `system_fingerprint` in an answer changes with all "
        "that may change answers."
    ),
}
