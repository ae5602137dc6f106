"""Schemas as an engine gets them: what is merged, narrowed, and refused by its path.

`tests/engine/vllm/test_schemas.py` compares with xgrammar and with a validator.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.operations.bodies.keywords import FORMATS, UnsupportedSchema
from inference.operations.bodies.schemas import MAX_DEPTH, MAX_EAGER_DEPTH, rewrite

pytestmark = pytest.mark.pure

A: dict[str, Any] = {"type": "string"}
NULL: dict[str, Any] = {"type": "null"}
NEVER: dict[str, Any] = {"not": {}}
CLOSED = {"additionalProperties": False}


def obj(required: str = "", **properties: Any) -> dict[str, Any]:
    """A closed object, as it is rewritten."""
    node = {"type": "object", "properties": properties, "required": required.split()}
    return node | CLOSED


@pytest.mark.parametrize(
    ("schema", "same"),
    [
        (True, {}),
        ({"title": "t", "default": 1, "x-a": 2, "$comment": "c", "uniqueItems": False}, {}),
        ({"type": ["string", "null"]}, {"anyOf": [NULL, A]}),
        ({"type": ["integer", "number"], "multipleOf": 1}, {"type": "integer"}),
        ({"minimum": 2}, {"type": "number", "minimum": 2}),
        ({"minLength": 1, "maxItems": 0}, {"anyOf": [{"type": "array", "maxItems": 0},
                                                      {"type": "string", "minLength": 1}]}),
        # merged
        ({"allOf": [A, {"minLength": 1}], "maxLength": 3}, A | {"minLength": 1, "maxLength": 3}),
        ({"anyOf": [{"type": "number", "maximum": 1.5}, {"type": "array"}], "minimum": 0,
          "type": "number"}, {"type": "number", "minimum": 0, "maximum": 1.5}),
        ({"type": "string", "anyOf": [{"minLength": 2}, {"const": "a"}, NULL]},
         {"anyOf": [A | {"minLength": 2}, {"const": "a"}]}),
        ({"allOf": [{"enum": [1, "a", None]}, {"enum": ["a", 1.0, True]}]}, {"enum": [1, "a"]}),
        ({"type": "integer", "enum": [1.0, 1.5, 3, True], "maximum": 2}, {"const": 1.0}),
        ({"enum": ["", "ab", "abc"], "minLength": 1, "maxLength": 2, "format": "x"},
         {"const": "ab"}),
        ({"allOf": [{"properties": {"a": A}, **CLOSED}, {"required": ["a", "a"]}]},
         obj("a", a=A)),
        ({"allOf": [{"properties": {"a": A}, **CLOSED}, {"properties": {"a": {}, "b": A}}]},
         obj(a=A)),
        ({"allOf": [{"const": [1]}, {"enum": [[1.0], [2]]}]}, {"const": [1]}),
        ({"type": "null", "enum": [None, False]}, {"const": None}),
        # numbers
        ({"multipleOf": 1}, {"type": "integer"}),
        ({"enum": [0.5, 2, 3.0, "a"], "multipleOf": 1.0}, {"enum": [2, 3.0, "a"]}),
        ({"allOf": [{"minimum": 2, "maximum": 3}, {"minimum": 1, "maximum": 4}]},
         {"type": "number", "minimum": 2, "maximum": 3}),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 0.12345678e2},
         {"type": "number", "minimum": 1.000001, "maximum": 12.345678}),
        ({"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 7, "minimum": -1},
         {"type": "integer", "minimum": 1, "maximum": 6}),
        ({"type": "integer", "minimum": -1e40, "maximum": 2**70},
         {"type": "integer", "minimum": -(10**18), "maximum": 10**18}),
        ({"type": "number", "minimum": 2_000_000_000.5}, {"type": "number", "minimum": 2000000001}),
        # strings
        ({"pattern": "a{2}", "minLength": 1}, A | {"pattern": "^(?:(?:(?:a){2,2}))$"}),
        ({"type": "string", "maxLength": 10**12}, A),
        ({"format": "uri"}, A | {"format": "uri"}),
        ({"type": "integer", "format": "int32"}, {"type": "integer"}),
        # arrays
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": "array", "items": NEVER}, {"type": "array", "maxItems": 0}),
        ({"items": A, "minItems": 1}, {"type": "array", "items": A, "minItems": 1}),
        ({"prefixItems": [A, NULL]}, {"type": "array", "prefixItems": [A, NULL], "items": False}),
        ({"items": [A, NULL], "additionalItems": A, "maxItems": 1},
         {"type": "array", "prefixItems": [A], "items": False}),
        ({"prefixItems": [A, False], "items": A}, {"type": "array", "prefixItems": [A],
                                                   "items": False}),
        ({"prefixItems": [A], "minItems": 2}, {"type": "array", "prefixItems": [A], "items": {},
                                               "minItems": 2}),
        ({"prefixItems": [A], "unevaluatedItems": NULL}, {"type": "array", "prefixItems": [A],
                                                          "items": NULL}),
        # objects
        ({"type": "object"}, {"type": "object"}),
        ({"additionalProperties": A, "minProperties": 1},
         {"type": "object", "additionalProperties": A, "minProperties": 1}),
        ({"maxProperties": 2}, {"type": "object", "additionalProperties": {}, "maxProperties": 2}),
        ({"maxProperties": 0}, obj()),
        ({"properties": {}}, obj()),
        ({"properties": {"a": A, "b": NEVER}}, obj(a=A)),
        ({"properties": {"a": A}, "required": ["b"]}, obj("b", a=A, b={})),
        ({"properties": {"a": A, "b": A}, "required": ["a"], "minProperties": 1,
          "maxProperties": 2}, obj("a", a=A, b=A)),
        ({"properties": {"a": A, "b": A}, "additionalProperties": A, "minProperties": 2},
         obj(a=A, b=A) | {"minProperties": 2}),
        ({"properties": {"a": A}, "unevaluatedProperties": False}, obj(a=A)),
        ({"properties": {"a" * 61: A}, "additionalProperties": True},
         obj() | {"properties": {"a" * 61: A}}),
        ({"patternProperties": {"^a$": NULL}, "additionalProperties": A},
         obj() | {"patternProperties": {"^(?:(?:a))$": NULL}}),
        ({"patternProperties": {r"\ud800": NULL}}, obj()),
        ({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": A,
          "properties": {"b": NULL, "c": {}}}, obj(b=NULL, a=A)),
        ({"propertyNames": {"const": "a"}}, obj(a={})),
        ({"propertyNames": NEVER}, obj()),
        ({"propertyNames": {"maxLength": 1}, "properties": {"a": A, "bc": A}}, obj(a=A)),
        ({"propertyNames": {"$ref": "#/$defs/a"}, "$defs": {"a": {"pattern": "^a$"}}},
         obj() | {"patternProperties": {"^(?:(?:a))$": {}},
                  "$defs": {"d0": A | {"pattern": "^(?:(?:a))$"}}}),
        ({"propertyNames": A, "type": "object"}, {"type": "object"}),
        # references
        ({"properties": {"next": {"$ref": "#"}}},
         obj(next={"$ref": "#/$defs/d0"}) | {"$defs": {"d0": obj(next={"$ref": "#/$defs/d0"})}}),
        ({"definitions": {"a/b": A}, "$ref": "#/definitions/a~1b", "maxLength": 1},
         {"$ref": "#/$defs/d0", "$defs": {"d0": A | {"maxLength": 1}}}),
        ({"type": ["null", "integer"], "anyOf": [{"$ref": "#/$defs/a"}, NULL], "$defs": {"a": A}},
         NULL),
        ({"properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#/$defs/a"}},
          "$defs": {"a": False}}, obj()),
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_is_rewritten(schema: Any, same: dict[str, Any]) -> None:
    assert rewrite(schema) == same


@pytest.mark.parametrize(
    ("schema", "at", "says"),
    [
        (False, "", "allows no value"),
        ({"type": "string", "const": 1}, "", "allows no value"),
        ({"anyOf": [NEVER, {"allOf": [A, NULL]}]}, "", "allows no value"),
        ({"minimum": 2, "exclusiveMaximum": 2}, "", "allows no value"),
        ({"minItems": 2, "maxItems": 1}, "", "allows no value"),
        ({"minLength": 2, "maxLength": 1}, "", "allows no value"),
        ({"pattern": r"\ud800"}, "", "allows no value"),
        ({"required": ["a"], "properties": {"a": False}}, "", "allows no value"),
        ({"required": ["a"], "propertyNames": {"const": "b"}}, "", "allows no value"),
        ({"required": ["a"], "maxProperties": 0}, "", "allows no value"),
        ({"properties": {"a": A}, "minProperties": 2}, "", "allows no value"),
        ({"required": ["a"], "properties": {"a": {"$ref": "#"}}, "type": "object",
          "allOf": [{"type": "string"}]}, "", "allows no value"),
        ({"$ref": "#"}, "", "refers only to itself"),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"required": ["a"], "properties": {
            "a": {"$ref": "#/$defs/a"}, "b": {}}, "maxProperties": 0}}}, "/$defs/a",
         "allows no value"),
        ({"properties": {"a": 5}}, "/properties/a", "must be a schema"),
        ({"type": "text"}, "/type", "`text` is not a type"),
        ({"anyOf": {}}, "/anyOf", "must be an array"),
        ({"anyOf": []}, "/anyOf", "at least one schema"),
        ({"items": {"uniqueItems": True}}, "/items/uniqueItems", "is not supported: check"),
        ({"properties": {"a/b": {"contains": A}}}, "/properties/a~1b/contains", "items"),
        ({"type": "number", "multipleOf": 0.01}, "/multipleOf", "only 1 is"),
        ({"type": "number", "multipleOf": "1"}, "/multipleOf", "only 1 is"),
        ({"if": A, "then": A}, "/if", "`anyOf`"),
        ({"not": A}, "/not", "describe what is allowed"),
        ({"dependentRequired": {"a": ["b"]}}, "/dependentRequired", "`anyOf`"),
        ({"$dynamicRef": "#a"}, "/$dynamicRef", "use `$ref`"),
        ({"items": {"$id": "b"}}, "/items/$id", "only at the root"),
        ({"$ref": "#/$defs/a/$defs/b", "$defs": {"a": {"$id": "x", "$defs": {"b": A}}}},
         "/$defs/a/$id", "only at the root"),
        ({"$ref": "other.json"}, "/$ref", "must refer to a part"),
        ({"$ref": "#/$defs/a"}, "/$ref", "refers to nothing"),
        ({"enum": [2**63]}, "/enum", "64 bits"),
        ({"const": {"a": [float("inf")]}}, "/const", "not finite"),
        ({"const": "\ud800"}, "/const", "lone surrogate"),
        ({"enum": [{}], "properties": {"a": A}}, "/properties", "beside `enum` or `const`"),
        ({"enum": [1], "multipleOf": 2}, "/multipleOf", "beside `enum`"),
        ({"minimum": "1"}, "/minimum", "must be a number"),
        ({"minimum": 10**16}, "/minimum", "must be within"),
        ({"maxLength": -1}, "/maxLength", "at least 0"),
        ({"type": "string", "minLength": 10**10}, "/minLength", "at most"),
        ({"format": "phone"}, "/format", "`phone` is unknown"),
        ({"format": "uri", "maxLength": 9}, "/format", "beside `minLength`"),
        ({"pattern": "a+", "maxLength": 9}, "/pattern", "write the length"),
        ({"pattern": "a", "format": "uri"}, "/format", "another"),
        ({"pattern": "(?=a)"}, "/pattern", "lookarounds"),
        ({"minItems": 6000, "items": {"maxItems": 6000}}, "", "at most 10000"),
        ({"required": [1]}, "/required", "strings"),
        ({"minProperties": 2}, "/minProperties", "other names may repeat"),
        ({"properties": {"a": A}, "patternProperties": {"b": A}}, "/patternProperties", "beside"),
        ({"properties": {"a": A}, "propertyNames": {"pattern": "a"}}, "/propertyNames", "pattern"),
        ({"propertyNames": {"maxLength": 501}}, "/propertyNames", "up to 500"),
        ({"propertyNames": {"format": "uri"}}, "/propertyNames", "only with"),
        ({"unevaluatedProperties": False, "allOf": [True]}, "/unevaluatedProperties", "beside"),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, "/oneOf", "use `anyOf`"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_its_path(schema: Any, at: str, says: str) -> None:
    with pytest.raises(UnsupportedSchema) as refused:
        rewrite(schema)
    assert refused.value.at == at
    assert says in refused.value.reason


CAT = {"type": "object", "properties": {"kind": {"const": "cat"}}}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "a": A}}


@pytest.mark.parametrize(
    ("branches", "same"),
    [
        ([A, NULL], [A, NULL]),
        ([A, NEVER], [A]),
        ([{"enum": ["a", 1]}, {"const": "b"}], [{"enum": ["a", 1]}, {"const": "b"}]),
        ([{"type": "integer"}, {"const": "b"}], [{"type": "integer"}, {"const": "b"}]),
        ([CAT, DOG, NULL], [obj("kind", kind={"const": "cat"}),
                            obj("kind", kind={"const": "dog"}, a=A), NULL]),
        ([obj("a", a=A, b=A), obj("b", b=A)], [obj("a", a=A, b=A), obj("b", b=A)]),
        ([{"anyOf": [A, NEVER]}, NULL], [A, NULL]),
        ([{"anyOf": [True, A]}, NULL], None),
        ([CAT, CAT], None),
        ([{"const": 1}, {"enum": [1.0, 2]}], None),
        ([{"type": "integer"}, {"type": "number"}], None),
        ([CAT, {"type": "object"} | CLOSED | {"patternProperties": {"k": True}}], None),
        ([{"properties": {"a": False}}, NULL], None),
    ],
    ids=str,
)  # fmt: skip
def test_one_of_is_any_of_if_its_schemas_exclude_each_other(
    branches: list[Any], same: list[Any] | None
) -> None:
    if same is None:
        with pytest.raises(UnsupportedSchema, match="use `anyOf`"):
            rewrite({"oneOf": branches})
    else:
        assert rewrite({"oneOf": branches}) == ({"anyOf": same} if len(same) > 1 else same[0])


def test_other_properties_have_other_names() -> None:
    node = rewrite({"properties": {"a": A, 'q"': A}, "additionalProperties": NULL})
    ((pattern, rest),) = node["patternProperties"].items()
    assert rest == NULL and node["properties"] == {"a": A, 'q"': A}
    assert "a(?:" in pattern and '"' not in pattern.replace("!#", "")


def test_each_format_is_a_pattern_or_is_known_to_the_engine() -> None:
    for name in FORMATS:
        assert rewrite({"format": name})["type"] == "string"


def test_a_long_chain_of_references_is_not_deep() -> None:
    length = 3 * MAX_EAGER_DEPTH
    defs = {f"a{i}": {"properties": {"a": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(length)}
    node = rewrite({"$ref": "#/$defs/a0", "$defs": defs | {f"a{length}": A}})
    assert len(node["$defs"]) == length + 1


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        nested(MAX_DEPTH),
        {
            "allOf": [
                {"anyOf": [{"minLength": i}, {"minLength": j}]} for i in range(99) for j in (1,)
            ]
        },
        {"allOf": [{"title": "a"}] * 4000, "anyOf": [{"title": "a"}] * 4000},
        {"anyOf": [{"title": "a"}] * 6000, "properties": {"a" * 9999: A}},
        {"anyOf": [{"title": "a"}] * 6000, "pattern": "a" * 9999},
        {"anyOf": [{"title": "a"}] * 6000, "enum": ["a" * 9999]},
        {"oneOf": [{"const": i} for i in range(6000)]},
        {"properties": {f"a{i}": {} for i in range(5000)}, "minProperties": 9},
        {"$defs": {"a" * 9000: A}, "anyOf": [{"$ref": "#/$defs/" + "a" * 9000}] * 5},
        json.loads('{"const": ' + "[" * 900 + "]" * 900 + "}"),
    ],
    ids=range(10),
)
def test_the_work_is_bounded(schema: dict[str, Any]) -> None:
    try:
        assert len(json.dumps(rewrite(schema))) < 100_000
    except (UnsupportedSchema, RecursionError) as refused:
        assert "complex" in str(refused) or "deep" in str(refused)
