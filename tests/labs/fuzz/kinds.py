"""What is random about the requests of each operation: `KINDS` declares it, a field at a time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Body = dict[str, Any]
Draw = Callable[[random.Random], Any]

VOCABULARY = 400
CONTEXT = 512
STEP = 256
"""Tokens of one engine step: a longer prompt is computed in chunks."""
BLOCK = 32

LENGTHS = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, STEP - 1, STEP, STEP + 1, 300, 400, CONTEXT - 40)
"""Of prompts, in tokens: around whatever the engine cuts them at."""
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


class Field(NamedTuple):
    """A field that is there in this share of the requests, or of those that have the field
    `beside`, without which it makes no sense; some have `wrong` values."""

    share: float
    right: Draw
    wrong: tuple[Any, ...] = ()
    beside: str = ""


Fields = dict[str, Field]


@dataclass(frozen=True)
class Kind:
    """The requests of one operation: `weight` is how many there are beside others', `prompt` draws
    the fields that hold the prompt, `fields` are all others."""

    weight: int
    prompt: Callable[[random.Random], Body]
    fields: Fields


def one_of(*values: Any) -> Draw:
    return lambda draw: draw.choice(values)


def some_of(values: tuple[Any, ...], most: int) -> Draw:
    return lambda draw: draw.choices(values, k=draw.randint(0, most))


# --- Prompts -------------------------------------------------------------------------------------


def length(draw: random.Random) -> int:
    return draw.choice(LENGTHS if draw.random() < 0.97 else EDGES)


def tokens(draw: random.Random, count: int) -> list[int]:
    first = draw.choice((0, 0, draw.randrange(380)))
    return [8 + (7 * i + first) % 380 for i in range(count)]


def text(draw: random.Random, tokens: int) -> str:
    """Of about so many tokens."""
    words = ("the ", "quick ", "fox ", "\u00e9t\u00e9 ", "\U0001f426 ", "{", "0.125 ", "\n")
    return "".join(draw.choices(words, k=max(1, tokens // 3)))


def _token_prompt(draw: random.Random) -> Body:
    found = tokens(draw, length(draw))
    if draw.random() < 0.03:
        found[-1] = draw.choice((VOCABULARY, VOCABULARY + 1, 2**31, 2**63))
    return {"prompt": found}


def _prompt(draw: random.Random) -> Body:
    if draw.random() < 0.2:
        return {"prompt": text(draw, length(draw))}
    if draw.random() < 0.1:
        return {"prompt": [tokens(draw, draw.choice(LENGTHS)) for _ in range(draw.randint(1, 3))]}
    return _token_prompt(draw)


class Turn(NamedTuple):
    """Of a conversation; a `call` has the arguments of a function as its text, a `result` what that
    returned."""

    by: Literal["system", "user", "assistant", "thought", "call", "result"]
    text: str


EARLIER = (
    [Turn("system", "Be brief.")],
    [Turn("user", "Who?"), Turn("assistant", "\u00e9t\u00e9")],
    [Turn("user", "Where?"), Turn("call", '{"city": "Rome", "open": true}'), Turn("result", "21")],
    [Turn("user", "Why?"), Turn("thought", "Hm."), Turn("call", ""), Turn("result", "")],
    [Turn("assistant", ""), Turn("system", "Be long."), Turn("call", "[1")],
)
"""What may come before the last turn of a conversation, which is long."""


def _turns(draw: random.Random) -> list[Turn]:
    earlier = draw.choice(EARLIER) if draw.random() < 0.3 else []
    return [*earlier, Turn("user", text(draw, length(draw)))]


def _chat(draw: random.Random) -> Body:
    return {"messages": [_message(turn) for turn in _turns(draw)]}


def _message(turn: Turn) -> Body:
    function = {"name": "get_weather", "arguments": turn.text}
    forms: dict[str, Body] = {
        "thought": {"role": "assistant", "content": "", "reasoning": turn.text},
        "call": {
            "role": "assistant",
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        "result": {"role": "tool", "tool_call_id": "call_1", "content": turn.text},
    }
    return forms.get(turn.by, {"role": turn.by, "content": turn.text})


def _chat_or_text(draw: random.Random) -> Body:
    return _chat(draw) if draw.random() < 0.5 else {"prompt": text(draw, length(draw))}


def _items(draw: random.Random) -> Body:
    turns = _turns(draw)
    if len(turns) == 1 and draw.random() < 0.5:
        return {"input": turns[0].text}
    return {"input": [_item(turn) for turn in turns]}


def _item(turn: Turn) -> Body:
    forms: dict[str, Body] = {
        "thought": {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": turn.text}],
        },
        "call": {
            "type": "function_call",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": turn.text,
        },
        "result": {"type": "function_call_output", "call_id": "call_1", "output": turn.text},
    }
    return forms.get(turn.by, {"role": turn.by, "content": turn.text})


def _blocks(draw: random.Random) -> Body:
    return {"messages": [_block(turn) for turn in _turns(draw)]}


def _block(turn: Turn) -> Body:
    called = json.loads(turn.text) if turn.by == "call" and turn.text.endswith("}") else {}
    forms = {
        "thought": ("assistant", {"type": "thinking", "thinking": turn.text, "signature": "s"}),
        "call": (
            "assistant",
            {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": called},
        ),
        "result": ("user", {"type": "tool_result", "tool_use_id": "call_1", "content": turn.text}),
    }
    if turn.by not in forms:
        return {"role": turn.by, "content": turn.text}
    role, block = forms[turn.by]
    return {"role": role, "content": [block]}


def _texts(draw: random.Random) -> Any:
    """One, or a few."""
    found = [text(draw, length(draw)) for _ in range(draw.choice((1, 1, 2, 7)))]
    return draw.choice((found[0], found))


def _inputs(draw: random.Random) -> Body:
    return {"input": _prompt(draw)["prompt"] if draw.random() < 0.5 else _texts(draw)}


def _pairs(draw: random.Random) -> Body:
    return {"queries": _texts(draw), "documents": _texts(draw)}


def _ranked(draw: random.Random) -> Body:
    return {"query": text(draw, 40), "documents": _texts(draw)}


# --- Constraints ---------------------------------------------------------------------------------


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


def _schema(draw: random.Random) -> Body:
    return {"name": "x", "schema": draw.choice(SCHEMAS), "strict": draw.choice((True, False))}


def _format(draw: random.Random) -> Body:
    schema = {"type": "json_schema", "json_schema": _schema(draw)}
    return draw.choice(({"type": "text"}, {"type": "json_object"}, schema, schema))


def _text_format(draw: random.Random) -> Body:
    schema = {"type": "json_schema", **_schema(draw)}
    return {"format": draw.choice(({"type": "text"}, {"type": "json_object"}, schema, schema))}


def _output_format(draw: random.Random) -> Body:
    return {"format": {"type": "json_schema", "schema": draw.choice(SCHEMAS)}}


WEATHER = {"name": "get_weather", "description": "Weather."}


def _lists(*tools: Body) -> Draw:
    """Of the first tool, of both, or of the second."""
    return one_of([tools[0]], [*tools], [tools[1]])


CHAT_TOOLS = _lists(
    {"type": "function", "function": WEATHER | {"parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
)
ITEM_TOOLS = _lists(
    {"type": "function", **WEATHER, "parameters": SCHEMA}, {"type": "function", "name": "now"}
)
BLOCK_TOOLS = _lists(
    WEATHER | {"input_schema": SCHEMA}, {"name": "now", "input_schema": {"type": "object"}}
)


def _listed(names: Sequence[Body]) -> Body:
    return {"mode": "required", "tools": [{"type": "function", **name} for name in names]}


def _choosing(*named: Body) -> Field:
    """The choice of a tool; the operations differ in how they name tools."""
    return Field(0.5, one_of("auto", "none", "required", *named), beside="tools")


# --- Operations ----------------------------------------------------------------------------------

LIKELIHOODS: Fields = {
    "temperature": Field(0.8, one_of(0, 0, 1e-9, 0.3, 0.7, 1.0, 1.0, 2.0, 100.0), (-1,)),
    "top_p": Field(0.3, one_of(0, 1e-9, 0.1, 0.5, 0.9, 1), (1.1,)),
    "top_k": Field(0.3, one_of(-1, 0, 1, 5, VOCABULARY - 1, VOCABULARY, 10**9), (-2,)),
    "stream": Field(0.5, one_of(True, True, False)),
}
SAMPLING: Fields = LIKELIHOODS | {
    "seed": Field(0.5, one_of(0, 1, 7, -1, 2**31, 2**63 - 1, -(2**63)), (2**64,)),
    "min_p": Field(0.2, one_of(0, 0.01, 0.5, 1), (1.1,)),
    "frequency_penalty": Field(0.2, one_of(-2, -0.5, 0, 0.5, 2), (3,)),
    "presence_penalty": Field(0.2, one_of(-2, 0.5, 2), (-3,)),
    "repetition_penalty": Field(0.2, one_of(0.5, 1, 1.2, 100), (0, -1)),
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
}
BOUND = Field(0.95, one_of(1, 1, 2, 5, 8, 16, 24, 40), (0, 10**6))
CHOICES: Fields = SAMPLING | {
    "n": Field(0.25, one_of(1, 2, 3, 5, 8), (0, 100)),
    "response_format": Field(0.15, _format, ({"type": "poem"},)),
    "max_tokens": BOUND,
    "echo": Field(0.15, one_of(True, False)),
    "prompt_logprobs": Field(0.05, one_of(0, 1, 5, 20), (21, -2)),
    "return_token_ids": Field(0.15, one_of(True, False)),
    "return_tokens_as_token_ids": Field(0.15, one_of(True, False)),
}
NOW = {"name": "now"}
CHAT: Fields = CHOICES | {
    "logprobs": Field(0.3, one_of(True, True, False)),
    "top_logprobs": Field(0.5, one_of(0, 1, 5, 20), (21,), beside="logprobs"),
    "tools": Field(0.25, CHAT_TOOLS, ([{}],)),
    "tool_choice": _choosing(
        {"type": "function", "function": NOW},
        {"type": "allowed_tools", "allowed_tools": _listed([{"function": NOW}])},
    ),
    "parallel_tool_calls": Field(0.05, one_of(True, False)),
    "add_generation_prompt": Field(0.1, one_of(True, False)),
    "continue_final_message": Field(0.02, one_of(True, False)),
}
COMPLETION: Fields = CHOICES | {
    "logprobs": Field(0.3, one_of(0, 1, 5, 20), (21, -1)),
    "add_special_tokens": Field(0.1, one_of(True, False)),
    "suffix": Field(0.0, one_of("the end"), ("the end",)),
}
RESPONSES: Fields = SAMPLING | {
    "instructions": Field(0.3, one_of("Be brief.", "", "\u00e9" * 40)),
    "max_output_tokens": BOUND,
    "store": Field(0.5, one_of(True, False)),
    "truncation": Field(0.2, one_of("auto", "disabled"), ("front",)),
    "include": Field(0.3, one_of([], ["message.output_text.logprobs"]), (["x"],)),
    "top_logprobs": Field(0.5, one_of(0, 1, 5, 20), (21,), beside="include"),
    "text": Field(0.15, _text_format, ({"format": {"type": "poem"}},)),
    "tools": Field(0.25, ITEM_TOOLS, ([{}],)),
    "tool_choice": _choosing(
        {"type": "function", **NOW}, {"type": "allowed_tools", **_listed([NOW])}
    ),
    "parallel_tool_calls": Field(0.05, one_of(True, False)),
    "reasoning": Field(0.1, one_of({"effort": "low"}, {"summary": "auto"}), ({"effort": "x"},)),
    "metadata": Field(0.1, one_of({"a": "b"}, {}), ({"a": 1},)),
}
COUNTED_ITEMS: Fields = {
    name: RESPONSES[name] for name in ("instructions", "reasoning", "text", "tools", "tool_choice")
}
PROMPT_OF_BLOCKS: Fields = {
    "system": Field(0.3, one_of("Be brief.", "", [{"type": "text", "text": "Be brief."}])),
    "tools": Field(0.25, BLOCK_TOOLS, ([{}],)),
    "tool_choice": Field(
        0.5,
        one_of(
            {"type": "auto"},
            {"type": "none"},
            {"type": "any", "disable_parallel_tool_use": True},
            {"type": "tool", **NOW},
        ),
        beside="tools",
    ),
    "thinking": Field(
        0.1, one_of({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}), ({},)
    ),
    "output_config": Field(0.15, _output_format, ({"format": {"type": "poem"}},)),
}
MESSAGES: Fields = (
    LIKELIHOODS
    | PROMPT_OF_BLOCKS
    | {
        "max_tokens": BOUND._replace(share=1.0),
        "stop_sequences": Field(0.25, some_of(STOPS, 4)),
        "metadata": Field(0.1, one_of({"user_id": "u"}, {"user_id": None}), ({"user_id": 1},)),
    }
)
TOKENIZE: Fields = {
    "add_special_tokens": Field(0.2, one_of(True, False)),
    "return_token_strs": Field(0.5, one_of(True, False), ("x",)),
}
SCORED: Fields = {
    "truncate_prompt_tokens": Field(0.3, one_of(-1, 1, BLOCK), (-2, 10**6, "x")),
}
EMBEDDED: Fields = SCORED | {
    "dimensions": Field(0.2, one_of(1, 64, 128), (0, 10**6)),
    "encoding_format": Field(0.5, one_of("float", "base64"), ("hex",)),
}
RANKED: Fields = SCORED | {"top_n": Field(0.5, one_of(0, 1, 3, 10**6), (-1,))}

KINDS: Mapping[str, Kind] = {
    "chat": Kind(4, _chat, CHAT),
    "completion": Kind(8, _prompt, COMPLETION),
    "responses": Kind(4, _items, RESPONSES),
    "messages": Kind(4, _blocks, MESSAGES),
    "input_tokens": Kind(1, _items, COUNTED_ITEMS),
    "count_tokens": Kind(1, _blocks, PROMPT_OF_BLOCKS),
    "tokenize": Kind(1, _chat_or_text, TOKENIZE),
    "detokenize": Kind(1, lambda draw: {"tokens": _token_prompt(draw)["prompt"]}, {}),
    "embeddings": Kind(4, _inputs, EMBEDDED),
    "score": Kind(2, _pairs, SCORED),
    "rerank": Kind(2, _ranked, RANKED),
}
"""By operation. The weights are as many as engines have ways to run one."""

CONSTRAINTS = ("structured_outputs", "response_format", "text", "output_config")
FREE: tuple[Any, ...] = (None, "auto", "none", {"type": "auto"}, {"type": "none"})
"""Tool choices beside which an answer may have one of the CONSTRAINTS."""
