"""The values of a body are counted as a JSON reader would find them, however its bytes are
split."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import InvalidRequest
from inference.operations.bodies.shape import MAX_DEPTH, MAX_VALUES, BodyShape

pytestmark = pytest.mark.pure

TEXTS = st.text(st.sampled_from('a"\\{}[],:\n\u20ac'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=40,
)


def fed(body: bytes, *, part: int = 1 << 16, numbers: int = 0) -> None:
    shape = BodyShape(numbers)
    for start in range(0, len(body), part):
        shape.feed(body[start : start + part])


def refused(body: bytes, **options: int) -> str:
    with pytest.raises(InvalidRequest) as caught:
        fed(body, **options)
    return caught.value.message


def within(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def figures(value: Any) -> tuple[int, int, int]:
    """Of a parsed body: the number of containers plus the elements after the first of each
    container; the number of containers; the depth."""
    inner = within(value)
    below = [figures(one) for one in inner]
    is_container = isinstance(value, dict | list)
    separators = max(0, len(inner) - 1)
    return (
        sum(one[0] for one in below) + separators + is_container,
        sum(one[1] for one in below) + is_container,
        max((one[2] for one in below), default=0) + is_container,
    )


@given(value=VALUES, parts=st.lists(st.integers(1, 9), max_size=60), indent=st.booleans())
def test_it_counts_as_a_reader_does(value: Any, parts: list[int], *, indent: bool) -> None:
    body = json.dumps(value, ensure_ascii=False, indent=1 if indent else None).encode()
    shape, at = BodyShape(), 0
    for size in [*parts, len(body)]:
        shape.feed(body[at : at + size])
        at += size
    elements, containers, _ = figures(value)
    assert shape._elements_left == MAX_VALUES - elements
    assert shape._containers_left == MAX_VALUES - containers
    assert (shape._depth, shape._in_string) == (0, False)


@given(VALUES)
def test_it_knows_how_deep_a_body_is(value: Any) -> None:
    depth = figures(value)[2]
    room = MAX_DEPTH - depth
    fed(b"[" * room + json.dumps(value).encode())
    assert "128 levels" in refused(b"[" * (room + 1) + json.dumps(value).encode() + b"[" * depth)


@pytest.mark.parametrize("part", [1, 7, 1 << 16])
def test_the_bound_is_exact(part: int) -> None:
    most = b"[" + b"1," * (MAX_VALUES - 1) + b"1]"
    fed(most, part=part)
    assert "more than 50000 values" in refused(most[:-1] + b",1]", part=part)


def many_keys() -> bytes:
    return json.dumps({f"k{i}": i for i in range(600_000)}).encode()


@pytest.mark.parametrize(
    "body",
    [
        many_keys,  # made on use, because each process of a test run collects these
        lambda: b"[" + b"[]," * MAX_VALUES + b"[]]",
        lambda: b"[" + b'"",' * (2 * MAX_VALUES) + b'""]',
        lambda: b"[" + b"{}" * (MAX_VALUES + 1),
    ],
    ids=["keys", "containers", "strings", "no JSON"],
)
def test_numbers_alone_may_be_more(body: Callable[[], bytes]) -> None:
    assert "values" in refused(body(), numbers=1 << 18)
    fed(b"[" + b"1," * (MAX_VALUES + 1000) + b"1]", numbers=1002)
    more = refused(b"[" + b"1," * (MAX_VALUES + 1000) + b"1]", numbers=1000)
    assert more == f"The body has more than {MAX_VALUES + 1000} values."
    containers = refused(b"[" + b"[]," * MAX_VALUES + b"[]]", numbers=1 << 18)
    assert containers == f"The body has more than {MAX_VALUES} values besides numbers."


def test_a_text_may_be_of_anything() -> None:
    text = '{"[,:]}\\' * 200_000
    fed(json.dumps({"content": text}).encode(), part=4097)


def test_a_large_part_is_counted_as_small_ones_are() -> None:
    text = json.dumps({"content": '{"[,:]}\\"' * 200_000}).encode()
    shape = BodyShape()
    shape.feed(text)
    assert (shape._depth, shape._in_string) == (0, False)
    with pytest.raises(InvalidRequest, match="levels"):
        BodyShape().feed(b"[" * (MAX_DEPTH + 1) + b"]" * (1 << 20))


def test_what_no_parser_reads_is_not_counted() -> None:
    """Counting stops at a bracket that closes nothing."""
    shape = BodyShape()
    shape.feed(b"[]" + b"]" * (1 << 17))
    shape.feed(b"{}," * (2 * MAX_VALUES))
    shape.begin()
    with pytest.raises(InvalidRequest, match="values"):
        shape.feed(b"{}," * (2 * MAX_VALUES))


def test_a_refusal_comes_with_the_part_that_is_too_much() -> None:
    """So that the rest need neither be waited for nor kept."""
    body = many_keys()
    shape, fed_bytes = BodyShape(), 0
    with pytest.raises(InvalidRequest):
        for start in range(0, len(body), 1 << 16):
            shape.feed(body[start : start + (1 << 16)])
            fed_bytes += 1 << 16
    assert fed_bytes < len(body) / 8


def test_several_texts_are_counted_together() -> None:
    shape = BodyShape()
    shape.feed(b'"never ends')
    for _ in range(5):
        shape.begin()
        shape.feed(b"[" + b"1," * (MAX_VALUES // 5 - 1))
    shape.begin()
    with pytest.raises(InvalidRequest, match="values"):
        shape.feed(b"[")


@pytest.mark.parametrize("part", [1, 2, 3, 1 << 16])
def test_text_is_utf_8_however_it_is_cut(part: int) -> None:
    text = '{"a":"\u00e9\u20ac\U0001f426"}'.encode()
    fed(text, part=part)
    fed(text[:-3], part=part)  # a parser finds that it is cut
    at = len(text) - 2
    wrong = refused(text[:-2] + b"\xff" + text[-2:], part=part)
    assert wrong == f"The body is not UTF-8: invalid start byte at byte {at}."
    assert "not UTF-8" in refused(b"[]]" + b" " * (1 << 16) + b"\xff", part=1 << 16)
