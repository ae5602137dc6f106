"""Rewrites a JSON schema so that xgrammar enforces all of it, or refuses it.

xgrammar silently ignores much of a schema: keywords without a `type`, whatever stands beside `$ref`
or `anyOf`, most of `allOf`. So a schema is rewritten to one with the same meaning, or a narrower
one, in which each node is one of

- `{}`, a `$ref` to `$defs`, an `anyOf`, an `enum` or a `const`, with nothing beside it;
- one `type` with its own keywords.

`keywords` has the table of all keywords. Theory of operation: a node is rewritten from a
conjunction, all the schemas that apply to the same value. `$ref` and `allOf` add to it; `anyOf`
makes one conjunction of each of its schemas with all others. What is left is a list of plain
schemas, whose keywords are merged type by type; the conjunctions of properties and items are
rewritten in turn. A conjunction from a `$ref` is written once, into `$defs`, so that recursive
schemas end. A node that allows no value is None.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from inference.operations.bodies.alternatives import alternatives_in, excluding_properties
from inference.operations.bodies.conjunctions import (
    Given,
    Parts,
    SchemaDocument,
    SchemaPart,
    refuse,
    types_of,
)
from inference.operations.bodies.expressions import Expression, other_than, translate
from inference.operations.bodies.expressions import of_length as any_of_length
from inference.operations.bodies.keywords import (
    FORMATS,
    REFUSED,
    TYPE_OF,
    NumberBounds,
    UnsupportedSchema,
    check_text,
    constrains,
    count,
    is_integer,
    is_refused,
    type_of,
)
from inference.operations.bodies.references import is_circular

MAX_ITEMS = 10_000
"""Bound of the sum of `minItems` and `maxItems` over a schema. An engine's grammar has a rule for
each item: 10^9 of them took minutes and all of its memory, which killed it."""
MAX_DEPTH = 80
"""Nodes within each other: the rewriting is recursive."""
MAX_EAGER_DEPTH = 40
"""A `$ref` in a deeper node is rewritten later, so that a long chain of them is not deep."""
MAX_NAME_LENGTH = 500
"""Largest length of property names that is enforced: each costs a state of an expression."""
MAX_OTHER_CHARS = 1_000
MAX_OTHER_DEPTH = 60
"""If the names of an object's properties are longer, together or one of them, no other properties
are allowed: the pattern that excludes them is 50 times as long, and nested."""
STEPS_PER_CHAR = 4
"""Cost of parsing a pattern."""
MAX_COUNT = 10**9
"""Larger counts do not fit into xgrammar's integers."""

Node = dict[str, Any]
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_NOTHING = "allows no value"
_APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf")


def rewrite(root: Any) -> Node:
    """The schema, or a narrower one, in the subset that xgrammar enforces.

    Raises:
        UnsupportedSchema: it can't be enforced, allows no value, or is too complex.
    """
    if isinstance(root, dict) and is_circular(root):
        raise UnsupportedSchema("", "has a `$ref` that refers only to itself")
    try:
        return _Rewriting(root).result()
    except RecursionError:  # of a literal in a schema that came as text
        raise UnsupportedSchema("", "is nested too deeply") from None


class _Rewriting:
    def __init__(self, root: Any) -> None:
        self._document = SchemaDocument(root)
        self._defs: dict[str, Node] = {}
        self._names: dict[Any, str] = {}
        self._empty, self._used = set[str](), set[str]()
        self._later: deque[tuple[str, Parts, frozenset[str]]] = deque()
        self._items = self._depth = 0

    def result(self) -> Node:
        root = self._node([("", self._document.root)])
        if root is None:
            raise UnsupportedSchema("", _NOTHING)
        while self._later:
            self._define(*self._later.popleft())
        return root | {"$defs": self._defs} if self._defs else root

    def _node(
        self, given: Iterable[Given], known: Parts = (), chosen: frozenset[str] = frozenset()
    ) -> Node | None:
        """Rewrite the conjunction of `given` and `known`; in those at `chosen` (pointers), one
        schema of `anyOf` or `oneOf` has been added already."""
        found = self._document.conjunction(given, known)
        if found is None:
            return None
        parts, refers = found
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnsupportedSchema(
                parts[-1].at if parts else "", f"is nested more than {MAX_DEPTH} levels deep"
            )
        node = self._referred(parts, chosen) if refers else self._body(parts, chosen)
        self._depth -= 1
        return node

    # --- references and alternatives ---

    def _referred(self, parts: Parts, chosen: frozenset[str]) -> Node | None:
        key = frozenset(part.at for part in parts), chosen
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"d{len(self._names)}"
            if self._depth > MAX_EAGER_DEPTH:
                self._used.add(name)
                self._later.append((name, parts, chosen))
            else:
                self._define(name, parts, chosen)
        else:
            self._used.add(name)
        return None if name in self._empty else {"$ref": f"#/$defs/{name}"}

    def _define(self, name: str, parts: Parts, chosen: frozenset[str]) -> None:
        body = self._body(parts, chosen)
        if body is not None:
            self._defs[name] = body
        elif name in self._used:
            raise UnsupportedSchema(parts[-1].at, _NOTHING)
        else:
            self._empty.add(name)

    def _body(self, parts: Parts, chosen: frozenset[str]) -> Node | None:
        for part, keyword in alternatives_in(parts):
            if (at := f"{part.at}/{keyword}") not in chosen:
                return self._alternatives(parts, part, keyword, chosen | {at})
        literals = self._document.literals(parts)
        if literals is not None:
            return self._literals(parts, literals.values())
        types = types_of(parts)
        if types is None:
            types = {
                TYPE_OF[keyword]
                for part in parts
                for keyword in part.schema
                if keyword in TYPE_OF and constrains(part.schema, keyword)
            }
            if not types:
                return {}
        return _any_of(self._typed(type_, parts) for type_ in sorted(types))

    def _alternatives(
        self, parts: Parts, part: SchemaPart, keyword: str, chosen: frozenset[str]
    ) -> Node | None:
        nodes = []
        for i, required in enumerate(excluding_properties(self._document, part, keyword)):
            given = [part.inner(keyword, i)]
            if required:
                given.append((f"{part.at}/{keyword}/{i}/required of all", {"required": required}))
            nodes.append(self._node(given, parts, chosen))
        return _any_of(nodes)

    def _literals(self, parts: Parts, values: Iterable[Any]) -> Node | None:
        types = types_of(parts)
        found = [
            value
            for value in values
            if (types is None or _is_of(value, types))
            and all(_allows(part, value) for part in parts)
        ]
        self._document.spend_text(repr(found), parts[0].at)
        if not found:
            return None
        return {"const": found[0]} if len(found) == 1 else {"enum": found}

    def _typed(self, type_: str, parts: Parts) -> Node | None:
        """The node of one type."""
        kind = "number" if type_ == "integer" else type_
        for part in parts:
            self._document.spend(1, part.at)
            for keyword in REFUSED.keys() & part.schema.keys():
                if TYPE_OF.get(keyword) == kind and is_refused(part.schema, keyword):
                    raise refuse(part, keyword)
        match type_:
            case "string":
                return self._string(parts)
            case "number" | "integer":
                return _number(type_, parts)
            case "array":
                return self._array(parts)
            case "object":
                return self._object(parts)
            case _:
                return {"type": type_}

    # --- strings ---

    def _string(self, parts: Parts) -> Node | None:
        low, high = _counts(parts, "Length")
        if low > high:
            return None
        found = {
            (keyword, part.get(keyword, str)): f"{part.at}/{keyword}"
            for part in parts
            for keyword in ("pattern", "format")
            if keyword in part.schema
        }
        if not found:
            return {"type": "string"} | _limits("Length", low, high)
        ((keyword, value), at), *more = found.items()
        if more:
            raise UnsupportedSchema(
                more[0][1], "is not supported beside another `pattern` or `format`"
            )
        pattern = value if keyword == "pattern" else _pattern_of(value, at)
        if pattern is None:
            if low > 0 or high < math.inf:
                raise UnsupportedSchema(
                    at, f"`{value}` is not supported beside `minLength` or `maxLength`"
                )
            return {"type": "string", "format": value}
        expression = self._expression(pattern, at)
        if expression is None:
            return None
        if expression.shortest < low or expression.longest > high:
            reason = "is not supported beside a `minLength` or `maxLength` that it doesn't imply"
            raise UnsupportedSchema(at, f"{reason}: write the length into the pattern")
        return {"type": "string", "pattern": expression.text}

    def _expression(self, pattern: str, at: str) -> Expression | None:
        check_text(pattern, at)
        self._document.spend(STEPS_PER_CHAR * len(pattern), at)
        try:
            return translate(pattern)
        except ValueError as error:
            raise UnsupportedSchema(at, f"is not supported: {error}") from None

    # --- arrays ---

    def _array(self, parts: Parts) -> Node | None:
        low, high = _counts(parts, "Items")
        size = max(len(_tuple(part)[1]) for part in parts)
        tuple_: list[Node] = []
        while len(tuple_) < min(size, high):
            item = self._node(_items(parts, len(tuple_)))
            if item is None:
                high = len(tuple_)
                break
            tuple_.append(item)
        rest = None
        if high > len(tuple_):
            given = _items(parts, size)
            is_open = given or not tuple_ or low > len(tuple_)
            rest = self._node(given) if is_open else None
        if rest is None:
            high = len(tuple_)
        if low > high:
            return None
        self._items += int(low) + (int(high) if high < math.inf else 0)
        if self._items > MAX_ITEMS:
            raise UnsupportedSchema(
                parts[0].at,
                f"makes `minItems` and `maxItems` of the schema add up to {self._items}: at most "
                f"{MAX_ITEMS} are allowed",
            )
        node: Node = {"type": "array"} | ({"prefixItems": tuple_} if tuple_ else {})
        if rest is None:
            if not tuple_:
                return node | {"maxItems": 0}
            return node | {"items": False} | _limits("Items", low, math.inf)
        return node | {"items": rest} | _limits("Items", low, high)

    # --- objects ---

    def _object(self, parts: Parts) -> Node | None:
        required = _names(parts, "required", list)
        names = self._allowed_names(parts)
        declared = names.among(_names(parts, "properties", dict) | required)
        if required.keys() - declared:
            return None
        others = self._others(parts, declared, names)
        nodes: dict[str, Node] = {}
        for name in declared:
            self._document.spend_text(name, parts[0].at)
            self._document.spend(len(parts), parts[0].at)
            node = self._node(_property(parts, name))
            if node is not None:
                nodes[name] = node
            elif name in required:
                return None
        free = None
        if others is not None and (node := self._node(others.given)) is not None:
            free = others.pattern, node
        bounded = self._bounded(parts, (len(required), len(nodes)), is_open=free is not None)
        if bounded is None:
            return None
        is_open, limits = bounded
        return _object_of(nodes, list(required), free if is_open else None, limits)

    def _bounded(
        self, parts: Parts, sizes: tuple[int, int], *, is_open: bool
    ) -> tuple[bool, Node] | None:
        """Whether an object with so many required and so many declared properties may have others,
        and the limits of their number; None if no object fits."""
        (required, declared), (low, high) = sizes, _counts(parts, "Properties")
        if low <= required:
            low = 0
        if is_open and low > max(1, declared):
            at = next(
                f"{part.at}/minProperties" for part in parts if "minProperties" in part.schema
            )
            raise UnsupportedSchema(
                at, "needs as many `properties`, because other names may repeat"
            )
        is_open = is_open and low < 2 and high > 0
        if not is_open and high >= declared:
            high = math.inf
        if low > high or required > high or (not is_open and low > declared):
            return None
        limits = _limits("Properties", low, high)
        if limits:  # a grammar then has a rule for each number of properties so far
            self._document.spend(declared * declared // 8, _at(parts))
        return is_open, limits

    def _allowed_names(self, parts: Parts) -> _Names:
        """What `propertyNames` says."""
        given = [part.inner("propertyNames") for part in parts if "propertyNames" in part.schema]
        if not given:
            return _Names()
        at = given[-1][0]
        node = self._node([*given, (f"{at}/strings", {"type": "string"})])
        if node is not None and "$ref" in node:
            node = self._defs.get(node["$ref"].rpartition("/")[2], {})
        if node is None:
            return _Names(at, listed=[])
        if "const" in node or "enum" in node:
            return _Names(at, listed=node.get("enum") or [node["const"]])
        if node.get("type") != "string" or "format" in node:
            raise UnsupportedSchema(at, "is supported only with `enum`, `pattern` and lengths")
        low, high = node.get("minLength", 0), node.get("maxLength", math.inf)
        pattern = node.get("pattern")
        if pattern is None and (low > 0 or high < math.inf):
            if max(low, high if high < math.inf else 0) > MAX_NAME_LENGTH:
                raise UnsupportedSchema(at, f"is supported with lengths up to {MAX_NAME_LENGTH}")
            return _Names(at, pattern=any_of_length(low, high).text, low=low, high=high)
        return _Names(at, pattern=pattern)

    def _others(self, parts: Parts, declared: dict[str, None], names: _Names) -> _Others | None:
        """The properties that are allowed beside the declared ones."""
        patterns = [(part, name) for part in parts for name in part.get("patternProperties", dict)]
        if patterns:
            part, pattern = patterns[-1]
            at = f"{part.at}/patternProperties"
            if len(patterns) > 1 or declared or names.at:
                raise UnsupportedSchema(
                    at,
                    "is not supported with several patterns, or beside `properties`, `required` "
                    "or `propertyNames`",
                )
            expression = self._expression(pattern, at)
            if expression is None:
                return None
            given = [part.inner("patternProperties", pattern)]
            return _Others(expression.text, given + _additional(parts, but=part))
        given = _additional(parts)
        if names.pattern is not None or names.listed is not None:
            return None if declared or names.pattern is None else _Others(names.pattern, given)
        is_explicit = any(_additional_keyword(part) for part in parts)
        if not declared:
            closed = not is_explicit and any("properties" in part.schema for part in parts)
            return None if closed else _Others(None, given)
        if not is_explicit and any("properties" in part.schema for part in parts):
            return None
        if sum(map(len, declared)) > MAX_OTHER_CHARS or max(map(len, declared)) > MAX_OTHER_DEPTH:
            return None
        pattern = other_than(declared)
        self._document.spend_text(pattern, parts[0].at)
        return _Others(pattern, given)


@dataclass(frozen=True, slots=True)
class _Names:
    """What `propertyNames` at `at` allows: everything, the `listed` names, or those that match the
    pattern, which stands for lengths if they are bounded."""

    at: str = ""
    listed: list[str] | None = None
    pattern: str | None = None
    low: int = 0
    high: float = math.inf

    def among(self, declared: dict[str, None]) -> dict[str, None]:
        """The declared names that are allowed, and the listed ones.

        Raises:
            UnsupportedSchema: it isn't known which are.
        """
        if self.listed is not None:
            allowed = dict.fromkeys(self.listed)
            return {name: None for name in declared if name in allowed} | allowed
        if self.pattern is None or not declared:
            return declared
        if self.low == 0 and self.high == math.inf:
            raise UnsupportedSchema(
                self.at, "with `pattern` is not supported beside `properties` or `required`"
            )
        return {name: None for name in declared if self.low <= len(name) <= self.high}


class _Others(NamedTuple):
    """Properties that are not declared: a pattern of their names, None for any; their schemas."""

    pattern: str | None
    given: list[Given]


def _object_of(
    nodes: dict[str, Node], required: list[str], free: tuple[str | None, Node] | None, limits: Node
) -> Node:
    """An object with these properties; `free` are the pattern (or None) and schema of others."""
    if free is not None and free[0] is None:
        rest = {"additionalProperties": free[1]} if free[1] or limits else {}
        return {"type": "object"} | rest | limits
    node: Node = {"type": "object", "properties": nodes, "required": required}
    if free is not None:
        node["patternProperties"] = {free[0]: free[1]}
    return node | {"additionalProperties": False} | limits


# --- what parts say together ---------------------------------------------------------------------


def _at(parts: Parts) -> str:
    return parts[0].at if parts else ""


def _pattern_of(name: str, at: str) -> str | None:
    """The pattern of a format, None if xgrammar's own is used.

    Raises:
        UnsupportedSchema: the format is unknown.
    """
    if name not in FORMATS:
        known = ", ".join(f"`{name}`" for name in FORMATS)
        raise UnsupportedSchema(at, f"`{name[:20]}` is unknown; known are {known}")
    return FORMATS[name]


def _any_of(nodes: Iterable[Node | None]) -> Node | None:
    found = [node for node in nodes if node is not None]
    if len(found) < 2:
        return found[0] if found else None
    return {"anyOf": found}


def _counts(parts: Parts, name: str) -> tuple[int, float]:
    """The largest minimum and the smallest maximum, of `Items`, `Length` or `Properties`."""
    low, high = 0, math.inf
    for part in parts:
        if f"min{name}" in part.schema:
            at = f"{part.at}/min{name}"
            low = max(low, count(part.schema[f"min{name}"], at))
            if low > MAX_COUNT:
                raise UnsupportedSchema(at, f"must be at most {MAX_COUNT}")
        if f"max{name}" in part.schema:
            high = min(high, count(part.schema[f"max{name}"], f"{part.at}/max{name}"))
    return low, high if high <= MAX_COUNT else math.inf


def _limits(name: str, low: int, high: float) -> Node:
    found: Node = {f"min{name}": low} if low > 0 else {}
    return found | ({f"max{name}": int(high)} if high < math.inf else {})


def _number(type_: str, parts: Parts) -> Node | None:
    bounds = NumberBounds()
    for part in parts:
        for keyword in _BOUNDS & part.schema.keys():
            bounds.add(keyword, part.schema[keyword], f"{part.at}/{keyword}")
        if "multipleOf" in part.schema:  # 1: others are refused
            type_ = "integer"
    found = bounds.inclusive(whole=type_ == "integer")
    return None if found is None else {"type": type_} | found


def _allows(part: SchemaPart, value: Any) -> bool:
    """Whether the part allows a literal, if its types do.

    Raises:
        UnsupportedSchema: it has keywords that are not evaluated here.
    """
    bounds, size = NumberBounds(), 0
    for keyword in part.schema:
        at = f"{part.at}/{keyword}"
        if TYPE_OF.get(keyword) != type_of(value) or not constrains(part.schema, keyword):
            continue
        if keyword in _BOUNDS:
            bounds.add(keyword, part.schema[keyword], at)
        elif keyword in ("minLength", "maxLength"):
            size = count(part.schema[keyword], at)
            if len(value) < size if keyword == "minLength" else len(value) > size:
                return False
        elif keyword == "multipleOf" and not is_refused(part.schema, keyword):
            if not is_integer(value):
                return False
        elif keyword != "format":
            raise UnsupportedSchema(at, "is not supported beside `enum` or `const`")
    return type_of(value) != "number" or bounds.allow(value)


def _is_of(value: Any, types: set[str]) -> bool:
    return type_of(value) in types or ("integer" in types and is_integer(value))


def _tuple(part: SchemaPart) -> tuple[str, list[Any]]:
    """The keyword for the first items, and their schemas."""
    if "prefixItems" in part.schema:
        return "prefixItems", part.get("prefixItems", list)
    if isinstance(part.schema.get("items"), list):
        return "items", part.schema["items"]
    return "", []


def _items(parts: Parts, number: int) -> list[Given]:
    """What applies to the item with this number."""
    found = []
    for part in parts:
        keyword, first = _tuple(part)
        if number < len(first):
            found.append(part.inner(keyword, number))
        elif rest := _rest(part, "additionalItems" if keyword == "items" else "items", "Items"):
            found.append(part.inner(rest))
    return found


def _rest(part: SchemaPart, keyword: str, name: str) -> str:
    """The keyword for all other items or properties, empty if the part has none."""
    if keyword in part.schema:
        return keyword
    unevaluated = f"unevaluated{name}"
    if not constrains(part.schema, unevaluated):
        return ""
    if any(other in part.schema for other in _APPLICATORS):
        at = f"{part.at}/{unevaluated}"
        raise UnsupportedSchema(at, "is not supported beside `$ref`, `allOf`, `anyOf` or `oneOf`")
    return unevaluated


def _additional_keyword(part: SchemaPart) -> str:
    return _rest(part, "additionalProperties", "Properties")


def _additional(parts: Parts, but: SchemaPart | None = None) -> list[Given]:
    """What applies to properties that are not declared, except by one of the parts."""
    return [
        part.inner(keyword)
        for part in parts
        if part is not but and (keyword := _additional_keyword(part))
    ]


def _property(parts: Parts, name: str) -> list[Given]:
    """What applies to the property with this name."""
    found = []
    for part in parts:
        if name in part.get("properties", dict):
            found.append(part.inner("properties", name))
        else:
            found += _additional((part,))
    return found


def _names(parts: Parts, keyword: str, kind: type[Any]) -> dict[str, None]:
    """The names in `required` or `properties`, in their order."""
    found: dict[str, None] = {}
    for part in parts:
        for name in part.get(keyword, kind):
            if not isinstance(name, str):
                raise UnsupportedSchema(f"{part.at}/{keyword}", "must have strings")
            check_text(name, f"{part.at}/{keyword}")
            found[name] = None
    return found
