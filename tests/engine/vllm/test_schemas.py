"""What xgrammar lets a model answer follows the client's schema, whatever keywords that has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema import (
    Draft7Validator,
    Draft202012Validator,
    FormatChecker,
)

from inference.operations.bodies.keywords import FORMATS, UnsupportedSchema
from inference.operations.bodies.schemas import rewrite
from tests.engine.vllm.schema_walks import accepts, grammar_of, walk

NAMES = st.sampled_from(["a", "b", "ab", "x y", 'q"', "é"])
PATTERNS = st.sampled_from(
    [
        "^[ab]{1,3}$", "a|b", "^x", r"^\d+\.\d$", r"\D\W?", r"^\S*$", r'["\\]{2}', r"^(?:é|\n)+$",
        "^a?$", "[^ab]", "(a|bc)*", ".", "^[a-c]$|^z", r"\u00e9\x41",
    ]
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-20, 20),
    st.floats(-3, 3).map(lambda number: round(number, 4)),
    st.sampled_from([0.1234567, -1e-9, 1e9 + 0.25, 1e12 + 0.5, -1e30, 1e30, 2**63]),
)
COUNTS = st.integers(0, 3)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
LITERALS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3),
    st.sampled_from([1.0, 0.1, 1e300, "", "a", 'q"\n', [], [1], {}, {"a": "a"}, {"a": None}]),
)  # fmt: skip


def maybe(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


def within(inner: st.SearchStrategy[Any], *, draft7: bool) -> st.SearchStrategy[Any]:
    """Schemas with schemas in them."""
    several = st.lists(inner, min_size=1, max_size=3)
    if draft7:
        tuples = {"items": several, "additionalItems": inner}
        unevaluated = {}
    else:
        tuples = {"items": inner, "prefixItems": several, "unevaluatedItems": inner}
        unevaluated = {"unevaluatedProperties": inner}
    arrays = maybe(type=st.just("array"), minItems=COUNTS, maxItems=COUNTS, **tuples)
    lists = maybe(type=st.just("array"), items=inner, minItems=COUNTS, maxItems=COUNTS)
    objects = maybe(
        type=st.sampled_from(["object", ["object", "null"]]),
        properties=st.dictionaries(NAMES, inner, max_size=3),
        required=st.lists(NAMES, max_size=2, unique=True), additionalProperties=inner,
        minProperties=COUNTS, maxProperties=COUNTS,
    )  # fmt: skip
    patterned = maybe(
        patternProperties=st.dictionaries(PATTERNS, inner, max_size=1),
        additionalProperties=inner, maxProperties=COUNTS, minProperties=st.integers(0, 1),
    )  # fmt: skip
    names = maybe(
        propertyNames=st.one_of(
            PATTERNS.map(lambda pattern: {"pattern": pattern}), st.just({"maxLength": 1}),
            st.lists(NAMES, max_size=2).map(lambda names: {"enum": names}),
        ),
        properties=st.dictionaries(NAMES, inner, max_size=2), additionalProperties=inner,
        **unevaluated,
    )  # fmt: skip
    either = maybe(
        anyOf=several, allOf=several, type=TYPES, properties=st.dictionaries(NAMES, inner)
    )
    one = maybe(oneOf=several)
    reference = st.sampled_from(["#", "#/$defs/a", "#/$defs/b"]).map(lambda to: {"$ref": to})
    merged = st.tuples(inner, reference).map(
        lambda both: {**both[0], **both[1]} if isinstance(both[0], dict) else both[1]
    )
    nothing = st.sampled_from([{"title": "t", "default": 1, "x-a": {}}, True, False, {"not": {}}])
    return st.one_of(
        arrays, lists, objects, objects, patterned, names, either, either, one, merged, nothing
    )


PLAIN = st.one_of(
    maybe(type=TYPES),
    maybe(type=st.just("string"), minLength=COUNTS, maxLength=COUNTS),
    maybe(pattern=PATTERNS, maxLength=st.integers(1, 4)),
    maybe(type=st.sampled_from(["number", "integer"]), minimum=NUMBERS, exclusiveMaximum=NUMBERS),
    maybe(maximum=NUMBERS, exclusiveMinimum=NUMBERS),
    maybe(type=TYPES, enum=st.lists(LITERALS, max_size=4), minimum=NUMBERS, maxLength=COUNTS),
    maybe(const=LITERALS),
    maybe(format=st.sampled_from(sorted(FORMATS)), type=TYPES),
    maybe(type=st.lists(TYPES, unique=True, min_size=1), multipleOf=st.sampled_from([1, 1.0, 2])),
)


def schemas(*, draft7: bool) -> st.SearchStrategy[Any]:
    inner = st.recursive(PLAIN, lambda inner: within(inner, draft7=draft7), max_leaves=12)
    return st.tuples(inner, st.fixed_dictionaries({"a": inner, "b": inner})).map(
        lambda both: {**both[0], "$defs": both[1]} if isinstance(both[0], dict) else both[0]
    )


def answers(schema: Any, seed: int, kind: Any) -> Iterator[tuple[Any, bool]]:
    """Three answers that xgrammar allows, and whether they follow the schema."""
    kind.check_schema(schema)
    validator = kind(schema, format_checker=FormatChecker())
    grammar, random = grammar_of(schema), Random(seed)
    for _ in range(3):
        if (answer := walk(grammar, random)) is not None:
            value = json.loads(answer, parse_float=_finite)
            yield value, validator.is_valid(value)


def _finite(text: str) -> float:
    """The number; `jsonschema` fails on infinite ones, as 1e999 is for Python."""
    return min(max(float(text), -1e300), 1e300)


@pytest.mark.parametrize("kind", [Draft7Validator, Draft202012Validator])
@given(data=st.data())
def test_an_answer_that_ends_follows_the_schema(kind: Any, data: st.DataObject) -> None:
    schema = data.draw(schemas(draft7=kind is Draft7Validator))
    try:
        rewrite(schema)
    except UnsupportedSchema:
        assume(False)
    for value, follows in answers(schema, data.draw(st.integers(0, 999)), kind):
        assert follows, value


TABLE: list[tuple[dict[str, Any], Any, Any]] = [
    ({"minimum": 2}, 2, 1),
    ({"type": "number", "exclusiveMaximum": 0.5}, 0.25, 0.5),
    ({"type": "string", "maxLength": 3}, "abc", "abcd"),
    ({"type": "string", "minLength": 3, "maxLength": 900}, "abc", "a\tb"),
    ({"pattern": "^a+$"}, "aa", "ab"),
    ({"pattern": "(ab*)?a"}, "aba", "bba"),
    ({"format": "date"}, "2024-02-28", "2024-02-30"),
    ({"format": "ipv4"}, "1.2.3.4", "01.2.3.4"),
    ({"enum": [1, "a"]}, "a", True),
    ({"const": {"a": [1]}}, {"a": [1]}, {"a": [2]}),
    ({"allOf": [{"type": "integer"}, {"maximum": 3}]}, 3, 4),
    ({"anyOf": [{"type": "string"}, {"type": "null"}], "maxLength": 1}, "a", "ab"),
    ({"oneOf": [{"type": "string"}, {"type": "null"}]}, None, 1),
    ({"$ref": "#/$defs/a", "maximum": 1, "$defs": {"a": {"type": "integer"}}}, 1, 2),
    ({"required": ["z"]}, {"z": 1}, {}),
    ({"properties": {"a": {"type": "null"}}}, {"a": None}, {"a": 1}),
    ({"properties": {"a": {"const": 1}}, "additionalProperties": True}, {"b": 2}, {"a": 2}),
    ({"patternProperties": {"^x": {"const": 1}}}, {"x": 1}, {"x": 2}),
    ({"propertyNames": {"enum": ["a"]}}, {"a": 1}, {"b": 1}),
    ({"minProperties": 1}, {"a": 1}, {}),
    ({"maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}),
    ({"items": [{"const": 1}], "additionalItems": {"const": 2}}, [1, 2], [2]),
    ({"prefixItems": [{"const": 1}], "items": False}, [1], [1, 2]),
    ({"items": {"const": 1}, "minItems": 2}, [1, 1], [1]),
    ({"maxItems": 1}, [1], [1, 2]),
    ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
]


@pytest.mark.parametrize(("schema", "follows", "breaks"), TABLE, ids=str)
def test_each_keyword_is_enforced(schema: dict[str, Any], follows: Any, breaks: Any) -> None:
    rewrite(schema)
    grammar = grammar_of(schema)
    assert accepts(grammar, json.dumps(follows, separators=(",", ":")))
    for text in (json.dumps(breaks), json.dumps(breaks).replace("\\t", "\t")):
        assert not accepts(grammar, text)


def test_a_property_cannot_come_again_as_another_one() -> None:
    grammar = grammar_of({"properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}})
    assert accepts(grammar, '{"a": 1, "b": 2}')
    for text in ('{"a": 1, "a": 2}', r'{"a": 1, "\u0061": 2}'):
        assert not accepts(grammar, text)
