"""An example of each operation that is served. The tests of what operations have in common use
these, so a new operation is tested as soon as it has an example; without one a test fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.inference.samples import MODEL

Body = dict[str, Any]

SAID = "Hello there, how do you do?"


@dataclass(frozen=True)
class Example:
    """A request of an operation.

    `saying` makes the fields that contain a text. `bound` is the field that bounds the answer,
    empty if nothing is generated. `hostile` are invalid values, by the field that the error names
    as `param`.
    """

    saying: Callable[[Any], Body]
    bound: str = ""
    hostile: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def body(self, model: str = MODEL.name, text: Any = SAID, **fields: Any) -> Body:
        """A valid body, of at most 20 tokens unless `fields` say otherwise."""
        bound = {self.bound: 20} if self.bound else {}
        return {"model": model} | bound | self.saying(text) | fields


def chat(content: Any) -> Body:
    """The fields of a chat with one user message."""
    return {"messages": [{"role": "user", "content": content}]}


def tokens(text: str) -> list[int]:
    """The text as tokens of the synthetic engine."""
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    return [int.from_bytes(b"\1" + piece.encode()) for piece in pieces]


NO_CHATS: tuple[Any, ...] = ("hello", [], [7], [{"role": "user"}], [{"content": "hello"}])
NO_TEXTS: tuple[Any, ...] = ([], "", [""], [[]], {"text": "hello"}, ["a"] * 2049)

EXAMPLES: Mapping[str, Example] = {
    "chat": Example(chat, "max_tokens", {"messages": NO_CHATS}),
    "completion": Example(lambda text: {"prompt": text}, "max_tokens", {"prompt": (7, {}, None)}),
    "responses": Example(lambda text: {"input": text}, "max_output_tokens", {"input": (7, [7])}),
    "messages": Example(chat, "max_tokens", {"messages": NO_CHATS, "max_tokens": (0, -1, "x")}),
    "embeddings": Example(lambda text: {"input": [text, "Good bye."]}, hostile={"input": NO_TEXTS}),
    "score": Example(
        lambda text: {"queries": text, "documents": [SAID, "Good bye."]},
        hostile={"documents": NO_TEXTS},
    ),
    "rerank": Example(
        lambda text: {"query": text, "documents": ["Good bye.", SAID]},
        hostile={"documents": NO_TEXTS},
    ),
    "input_tokens": Example(lambda text: {"input": text}, hostile={"input": (7, [7], [], None)}),
    "count_tokens": Example(chat, hostile={"messages": NO_CHATS}),
    "tokenize": Example(lambda text: {"prompt": text}, hostile={"prompt": (7, [], {})}),
    "detokenize": Example(
        lambda text: {"tokens": tokens(text)}, hostile={"tokens": ("1", [-1], [1.5], [True])}
    ),
    "echo": Example(lambda text: {"text": text}, "max_tokens", {"text": (7, "", [])}),
}
"""By the operation's name. `echo` exists only in tests."""

TO_DO = "write an example of it in EXAMPLES of tests/inference/operations/examples.py"


def messages(model: str = MODEL.name, content: Any = SAID, **fields: Any) -> Body:
    """A request of Anthropic's API."""
    return EXAMPLES["messages"].body(model, content, **fields)


def responses(input: Any = SAID, **fields: Any) -> Body:
    """A request of the Responses API."""
    return EXAMPLES["responses"].body(**{"input": input} | fields)
