"""Whether an answer has the structure that was asked for: text by a JSON schema, and arguments of
tool calls by the tools' parameters.

An engine's grammar should enforce both, but engines have dropped schemas silently (beside parsers
of thoughts: vLLM#57726, #44012), and without `strict` a tool's parameters are only a hint. Pure;
but see `validation` for where to call it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from inference.operations.answered import AnsweredChoice, choices_of
from inference.operations.bodies.constraints import NAMESPACE, flat_name
from inference.operations.validation import UnusableSchema, checked_validator_of, follows

ASKS = b"json"
"""Is part of every field that asks for JSON."""
FUNCTION = b'"name"'
"""Is part of all tools, but not of an empty list."""
CUT = ("length", "cancelled")
"""Finish reasons of answers that are not whole."""
RawPart = bytes | msgspec.Raw
MAX_REMEMBERED = 16
"""Decoded schemas to remember, because clients repeat them: each takes up to some megabytes."""


class StructureOutcome(StrEnum):
    CONFORMED = "conformed"
    MALFORMED = "malformed"
    UNCHECKED = "unchecked"
    """The answer was cut, was too long or took too long to check, or its schema can't be used."""


class AskedStructure(msgspec.Struct, frozen=True):
    """The fields of a body that ask for a structure, as the client wrote them; empty if they are
    missing. `format` is OpenAI's `response_format` or `text`, or Anthropic's `output_config`;
    `outputs` is vLLM's `structured_outputs`."""

    format: bytes = b""
    outputs: bytes = b""
    tools: bytes = b""

    @classmethod
    def of(cls, format: RawPart, outputs: RawPart, tools: RawPart) -> AskedStructure | None:
        """From these fields of a body; None if no structure is asked for. Copies them, because a
        raw part of a body would keep all of it in memory."""
        asks, uses = _if_has(ASKS, format), _if_has(ASKS, outputs)
        asked = cls(asks, uses, _if_has(FUNCTION, tools))
        return asked if asked.format or asked.outputs or asked.tools else None

    @property
    def only_tools(self) -> bool:
        """Whether an answer without tool calls has nothing to be checked."""
        return not self.format and not self.outputs


def _if_has(what: bytes, part: RawPart) -> bytes:
    found = bytes(part)
    return found if what in found else b""


class FinishedAnswer(msgspec.Struct, frozen=True):
    """An answer as its engine sent it: as text, or as `parts`, which are the chunks of a stream or
    one whole response. `finish_reason` is that of choices without one."""

    text: str = ""
    parts: list[bytes] = []
    finish_reason: str = ""

    def choices(self) -> list[AnsweredChoice]:
        """Its choices."""
        return choices_of(self.parts) if self.parts else [AnsweredChoice(self.text)]


def outcome_of(asked: AskedStructure, answer: FinishedAnswer) -> StructureOutcome | None:
    """Whether all choices of the answer have the structure; None if none was asked of them."""
    try:
        found = {_of_choice(asked, one, answer.finish_reason) for one in answer.choices()}
    except (UnusableSchema, ValueError, TypeError, AttributeError, RecursionError):
        return StructureOutcome.UNCHECKED
    for outcome in (StructureOutcome.MALFORMED, StructureOutcome.UNCHECKED):
        if outcome in found:
            return outcome
    return StructureOutcome.CONFORMED if StructureOutcome.CONFORMED in found else None


def _of_choice(
    asked: AskedStructure, choice: AnsweredChoice, finish_reason: str
) -> StructureOutcome | None:
    if (choice.finish_reason or finish_reason) in CUT:
        return StructureOutcome.UNCHECKED
    if choice.calls:
        known = _parameters(asked.tools)
        return _outcome(all(_is_call(call, known) for call in choice.calls.values()))
    validator = _schema(asked.format, asked.outputs)
    return None if validator is None else _outcome(follows(choice.text, validator))


def _outcome(conforms: bool) -> StructureOutcome:
    return StructureOutcome.CONFORMED if conforms else StructureOutcome.MALFORMED


def _is_call(call: Mapping[str, str], known: Mapping[str, Any]) -> bool:
    """Whether it calls a known tool with arguments that this one takes."""
    validator = known.get(call.get("name", ""))
    return validator is not None and follows(call.get("arguments", ""), validator)


@lru_cache(MAX_REMEMBERED)
def _schema(format: bytes, outputs: bytes) -> Any:
    """The validator of the text's schema; None if these fields ask for none."""
    if outputs and (found := json.loads(outputs).get("json")) is not None:
        return checked_validator_of(json.loads(found) if isinstance(found, str) else found)
    if not format:
        return None
    given = json.loads(format)
    given = given.get("format") or given
    if given.get("type") == "json_object":
        return checked_validator_of({"type": "object"})
    schema = (given.get("json_schema") or given).get("schema")
    return None if schema is None else checked_validator_of(schema)


@lru_cache(MAX_REMEMBERED)
def _parameters(tools: bytes) -> Mapping[str, Any]:
    """The validator of each tool's arguments, by the name that a chat has for it."""
    functions = _functions(json.loads(tools or b"[]"))
    return {name: checked_validator_of(schema) for name, schema in functions}


def _functions(tools: Any, namespace: str = "") -> Iterator[tuple[str, Any]]:
    """The names and schemas of tools in the notation of any API. Without a schema a function takes
    any object."""
    for tool in tools:
        if tool.get("type") == NAMESPACE:
            yield from _functions(tool.get("tools", ()), tool["name"])
        else:
            function = tool.get("function") or tool
            schema = function.get("parameters") or function.get("input_schema")
            yield flat_name(namespace, function.get("name", "")), schema or {"type": "object"}
