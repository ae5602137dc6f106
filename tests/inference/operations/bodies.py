"""A body for each operation that is served. Tests of what all of them have in common ask for these,
and one of them sees that none is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.inference.samples import MODEL

Body = dict[str, Any]

SAID = "Hello there, how do you do?"
TOKENS = [int.from_bytes(b"\1" + piece) for piece in (b"Hell", b"o")]
"""Of the synthetic engine."""


def messages(model: str = MODEL.name, content: Any = SAID, **fields: Any) -> Body:
    """A request of Anthropic's API."""
    turns = [{"role": "user", "content": content}]
    return {"model": model, "max_tokens": 20, "messages": turns} | fields


def responses(input: Any = SAID, **fields: Any) -> Body:
    """A request of the Responses API."""
    return {"model": MODEL.name, "max_output_tokens": 20, "input": input} | fields


BODIES: Mapping[str, Callable[[str], Body]] = {
    "chat": lambda model: {
        "model": model,
        "max_tokens": 20,
        "messages": [{"role": "user", "content": SAID}],
    },
    "completion": lambda model: {"model": model, "max_tokens": 20, "prompt": SAID},
    "responses": lambda model: responses(model=model),
    "messages": messages,
    "embeddings": lambda model: {"model": model, "input": [SAID, "Good bye."]},
    "score": lambda model: {"model": model, "queries": SAID, "documents": [SAID, "Good bye."]},
    "rerank": lambda model: {"model": model, "query": SAID, "documents": ["Good bye.", SAID]},
    "count_tokens": lambda model: {
        "model": model,
        "messages": [{"role": "user", "content": SAID}],
    },
    "tokenize": lambda model: {"model": model, "prompt": SAID},
    "detokenize": lambda model: {"model": model, "tokens": TOKENS},
}
"""By the operation's name, for a model."""

MAX_TOKENS: Mapping[str, str] = {"responses": "max_output_tokens"}
"""What the bound of an answer is called, where not `max_tokens`."""
