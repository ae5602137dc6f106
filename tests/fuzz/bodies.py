"""Random requests with everything that vLLM accepts, and some that it must refuse; derived from a
seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

VOCABULARY = 400
CONTEXT = 512
STEP = 256
"""Tokens of one engine step: a longer prompt is computed in chunks."""
BLOCK = 32

LENGTHS = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, STEP - 1, STEP, STEP + 1, 300, 400, CONTEXT - 40)
"""Of prompts, in tokens: around every size at which the engine splits them."""
EDGES = (CONTEXT - 1, CONTEXT, CONTEXT + 1)

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "open": {"type": "boolean"}},
    "required": ["city", "open"],
    "additionalProperties": False,
}
SCHEMAS: tuple[Any, ...] = (
    SCHEMA,
    {"type": "array", "items": {"type": "integer"}, "maxItems": 5},
    {"enum": ["yes", "no", "\u00fc\u00f1\u00ee", ""]},
    {"type": "object", "properties": {"a": {"$ref": "#"}}},
    {"$ref": "#"},
    {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-c]{1,4}$"}]},
    {"type": "string", "pattern": "(a|b)*c{2,5}"},
    {"type": "number", "minimum": 3, "maximum": 1},
    {"type": "nonsense"},
    {},
    True,
)
REGEXES = ("[a-z]{1,8}", "(yes|no)", r"\d{3}-\d{4}", "", "(", "(a*)*b", ".", "\\p{L}+", "a{1000}")
GRAMMARS = ('root ::= "yes" | "no"', 'root ::= "a" root | "b"', "root ::= root", "root ::= ", "?")
STOPS = ("a", "the", " ", "\n", "\u00e9", "<|eos|>", "x" * 500, "")
IDS = (0, 1, 5, 77, VOCABULARY - 1)
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA},
}
BARE_TOOL = {"type": "function", "function": {"name": "now"}}

Draw = Callable[[random.Random], Any]


def one_of(*values: Any) -> Draw:
    return lambda draw: draw.choice(values)


def some_of(values: tuple[Any, ...], most: int) -> Draw:
    return lambda draw: draw.choices(values, k=draw.randint(0, most))


def _bias(draw: random.Random) -> dict[str, Any]:
    values = (-100, -1.5, 0, 1, 100)
    return {str(draw.choice(IDS)): draw.choice(values) for _ in range(draw.randint(0, 4))}


def _structured(draw: random.Random) -> dict[str, Any]:
    return {
        "json": lambda: {"json": draw.choice(SCHEMAS)},
        "regex": lambda: {"regex": draw.choice(REGEXES)},
        "choice": lambda: {"choice": draw.choices(("a", "bb", "\u00e9", ""), k=draw.randint(0, 3))},
        "grammar": lambda: {"grammar": draw.choice(GRAMMARS)},
    }[draw.choice(("json", "regex", "choice", "grammar"))]()


def _format(draw: random.Random) -> dict[str, Any]:
    schema = {"name": "x", "schema": draw.choice(SCHEMAS), "strict": draw.choice((True, False))}
    return draw.choice(
        (
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": schema},
            {"type": "json_schema", "json_schema": schema},
        )
    )


class Field(NamedTuple):
    """A field, its share of the requests, valid values, and for some fields `wrong` ones."""

    share: float
    right: Draw
    wrong: tuple[Any, ...] = ()


SAMPLING: Mapping[str, Field] = {
    "temperature": Field(0.8, one_of(0, 0, 1e-9, 0.3, 0.7, 1.0, 1.0, 2.0, 100.0), (-1,)),
    "seed": Field(0.5, one_of(0, 1, 7, -1, 2**31, 2**63 - 1, -(2**63)), (2**64,)),
    "top_p": Field(0.3, one_of(1e-9, 0.1, 0.5, 0.9, 1), (0, 1.1)),
    "top_k": Field(0.3, one_of(-1, 0, 1, 5, VOCABULARY - 1, VOCABULARY, 10**9), (-2,)),
    "min_p": Field(0.2, one_of(0, 0.01, 0.5, 1), (1.1,)),
    "frequency_penalty": Field(0.2, one_of(-2, -0.5, 0, 0.5, 2), (3,)),
    "presence_penalty": Field(0.2, one_of(-2, 0.5, 2), (-3,)),
    "repetition_penalty": Field(0.2, one_of(0.5, 1, 1.2, 100), (0, -1)),
    "n": Field(0.25, one_of(1, 2, 3, 5, 8), (0, 100)),
    "stop": Field(0.25, lambda draw: draw.choice((draw.choice(STOPS), some_of(STOPS, 4)(draw)))),
    "stop_token_ids": Field(0.2, some_of(IDS, 4), ([2**40],)),
    "include_stop_str_in_output": Field(0.1, one_of(True, False)),
    "min_tokens": Field(0.2, one_of(0, 1), (100, -1)),
    "ignore_eos": Field(0.3, one_of(True, False)),
    "logit_bias": Field(0.2, _bias, ({"99999": 1}, {"-1": 1}, {"5": 1e30})),
    "allowed_token_ids": Field(0.1, lambda draw: draw.choices(IDS, k=draw.randint(1, 4)), ([],)),
    "bad_words": Field(0.1, some_of(("a", "the", " ", "quick brown", "\u00e9"), 3), ([""],)),
    "skip_special_tokens": Field(0.1, one_of(True, False)),
    "spaces_between_special_tokens": Field(0.1, one_of(True, False)),
    "structured_outputs": Field(0.12, _structured, ({"regex": "a", "choice": ["a"]}, {})),
    "response_format": Field(0.15, _format, ({"type": "poem"},)),
    "max_tokens": Field(0.95, one_of(1, 1, 2, 5, 8, 16, 24, 40), (0, 10**6)),
    "stream": Field(0.5, one_of(True, True, False)),
}
CHAT: Mapping[str, Field] = {
    "logprobs": Field(0.3, one_of(True, True, False)),
    "top_logprobs": Field(0.2, one_of(0, 1, 5, 20), (21,)),
    "tools": Field(0.15, one_of([TOOL], [TOOL, BARE_TOOL], [BARE_TOOL]), ([{}],)),
    "tool_choice": Field(
        0.15,
        one_of("auto", "none", "required", {"type": "function", "function": {"name": "now"}}),
    ),
    "parallel_tool_calls": Field(0.05, one_of(True, False)),
    "add_generation_prompt": Field(0.1, one_of(True, False)),
    "continue_final_message": Field(0.02, one_of(True, False)),
}
COMPLETION: Mapping[str, Field] = {
    "logprobs": Field(0.3, one_of(0, 1, 5, 20), (21, -1)),
    "echo": Field(0.15, one_of(True, False)),
    "add_special_tokens": Field(0.1, one_of(True, False)),
    "suffix": Field(0.0, one_of("the end"), ("the end",)),
}
SPOILED = 0.15
"""Share of the requests that have a wrong value."""


@dataclass(frozen=True)
class Fuzz:
    """One request. `adapter` is a number, or None for the base model. The client leaves after
    `leaves_after` tokens, unless that is None. Requests of one `salt` share a prefix cache."""

    kind: str
    body: dict[str, Any]
    adapter: int | None
    salt: str
    leaves_after: int | None


def made(seed: int, number: int, adapters: int) -> Fuzz:
    """The request with this number. It depends only on the arguments, not on other requests."""
    draw = random.Random(f"{seed}-{number}")
    kind = draw.choice(("chat", "completion", "completion"))
    body = _prompt(draw, kind)
    fields = {**SAMPLING, **(CHAT if kind == "chat" else COMPLETION)}
    body |= {
        name: field.right(draw) for name, field in fields.items() if draw.random() < field.share
    }
    if draw.random() < SPOILED:
        name = draw.choice([name for name, field in fields.items() if field.wrong])
        body[name] = draw.choice(fields[name].wrong)
    elif kind == "chat":
        _agree(body)
    return Fuzz(
        kind,
        body,
        draw.choice((None, *range(adapters))),
        draw.choice(("shared", f"own-{number}")),
        draw.choice((None, None, None, 0, 1, 5)),
    )


def _agree(body: dict[str, Any]) -> None:
    """Remove fields that are only valid together with another one, or only without it."""
    if not body.get("logprobs"):
        body.pop("top_logprobs", None)
    named = {tool["function"]["name"] for tool in body.get("tools", ())}
    choice = body.get("tool_choice")
    if not named or (isinstance(choice, dict) and "now" not in named):
        body.pop("tool_choice", None)
    elif choice not in (None, "none", "auto"):
        body.pop("structured_outputs", None)
        body.pop("response_format", None)


def _prompt(draw: random.Random, kind: str) -> dict[str, Any]:
    length = draw.choice(LENGTHS if draw.random() < 0.97 else EDGES)
    if kind == "chat":
        return {"messages": [{"role": "user", "content": _text(draw, length)}]}
    if draw.random() < 0.2:
        return {"prompt": _text(draw, length)}
    if draw.random() < 0.1:
        return {"prompt": [_tokens(draw, draw.choice(LENGTHS)) for _ in range(draw.randint(1, 3))]}
    tokens = _tokens(draw, length)
    if draw.random() < 0.03:
        tokens[-1] = draw.choice((VOCABULARY, VOCABULARY + 1, 2**31, 2**63))
    return {"prompt": tokens}


def _tokens(draw: random.Random, count: int) -> list[int]:
    first = draw.choice((0, 0, draw.randrange(380)))
    return [8 + (7 * i + first) % 380 for i in range(count)]


def _text(draw: random.Random, tokens: int) -> str:
    """A text of about `tokens` tokens."""
    words = ("the ", "quick ", "fox ", "\u00e9t\u00e9 ", "\U0001f426 ", "{", "0.125 ", "\n")
    return "".join(draw.choices(words, k=max(1, tokens // 3)))
