"""Bounds on the patterns in a request's schemas and grammars."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.agent.engines.vllm.patterns import MAX_COUNTS, MAX_REPEATS, check_patterns
from inference.errors import InvalidRequest

pytestmark = pytest.mark.pure

HARD = "(a*)*" * (MAX_REPEATS // 2) + "a?"
FINE = "(a*)*" * (MAX_REPEATS // 2)


def ways(pattern: str) -> list[tuple[str, dict[str, Any]]]:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    named = {"type": "object", "patternProperties": {pattern: {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return [
        ("structured_outputs", {"structured_outputs": {"regex": pattern}}),
        ("structured_outputs", {"structured_outputs": {"grammar": pattern}}),
        ("structured_outputs", {"structured_outputs": {"json": [schema]}}),
        ("structured_outputs", {"structured_outputs": {"json": json.dumps(schema)}}),
        ("response_format", {"response_format": {"json_schema": {"schema": named}}}),
        ("tools", {"tools": [tool], "tool_choice": "required"}),
    ]


@pytest.mark.parametrize(("name", "fields"), ways(HARD))
def test_too_many_repetitions_are_refused(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"{MAX_REPEATS + 1} repetitions") as refused:
        check_patterns(fields)
    assert refused.value.param == name


@pytest.mark.parametrize(
    ("pattern", "counted"),
    [
        ("(a|b){1,1000}", 1000),
        ("a{501}", 501),
        ("a{501,}", 501),
        ("a{,501}b{", 501),
        ("a{ 300 , 301 }b{200}", 501),
        ("a{0600,5}", 600),
        ("a{" + "9" * 5_000 + "}", 999_999_999),
        ("a{1,400}{1,101}" + "{" + " " * 50_000, 501),
    ],
)
def test_too_high_counts_are_refused(pattern: str, counted: int) -> None:
    for name, fields in ways(pattern):
        with pytest.raises(InvalidRequest, match=f"add up to {counted}:") as refused:
            check_patterns(fields)
        assert refused.value.param == name


@pytest.mark.parametrize(
    "fields",
    [
        *(fields for _, fields in ways(FINE)),
        *(fields for _, fields in ways(f"[a-z]{{2,{MAX_COUNTS}}}" + "{x,1000}{}")),
        ways(HARD)[-1][1] | {"tool_choice": "auto"},
        {},
        {"structured_outputs": None, "response_format": "text"},
        {"structured_outputs": {"json": "{" * 200}},
        {"structured_outputs": {"choice": ["a*" * 100]}},
    ],
)
def test_others_are_left_to_vllm(fields: dict[str, Any]) -> None:
    check_patterns(fields)
