"""Names for the beginnings of prompts."""

from __future__ import annotations

import json
from itertools import pairwise, takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.link.prefixes import Prefix
from inference.operations.bodies.beginnings import (
    FAR_STRIDE,
    MAX_CHARS,
    MAX_MARKS,
    NEAR_CHARS,
    STRIDE,
    Beginnings,
)
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION

pytestmark = pytest.mark.pure


def named(*texts: str, tools: bytes = b"", salt: str = "salt", adapter: str = "") -> Prefix:
    beginnings = Beginnings(tools)
    for text in texts:
        beginnings.add(text)
        beginnings.mark()
    prefix = beginnings.named(salt, adapter)
    assert prefix is not None
    return prefix


def ends(prefix: Prefix) -> list[int]:
    """Where each beginning ends, if the prompt has as many tokens as characters."""
    whole = int.from_bytes(prefix.ends[-4:], "little")
    return prefix.tokens(whole)


def shared(one: Prefix, other: Prefix) -> int:
    """Length in characters of the longest beginning that both have."""
    pairs = zip(one.numbers(), other.numbers(), ends(one), strict=False)
    alike = list(takewhile(lambda pair: pair[0] == pair[1], pairs))
    return alike[-1][2] if alike else 0


def test_a_message_ends_a_beginning_and_so_does_each_stride() -> None:
    assert ends(named("a" * 100, "b" * 1000)) == [100, STRIDE, 2 * STRIDE, 1100]


def test_an_empty_text_has_no_prefixes() -> None:
    beginnings = Beginnings()
    assert beginnings.named("salt", "") is None
    beginnings.add("")
    beginnings.mark()
    assert beginnings.named("salt", "") is None


def test_a_prompt_without_text_has_no_prefixes() -> None:
    assert COMPLETION.parse(b'{"model": "m", "prompt": ""}').take_prefix("salt", "") is None


@pytest.mark.parametrize(
    "prefix",
    [Prefix(b"", b""), Prefix(b"h" * 8, b"e" * 8), Prefix(b"h" * 8, b"e" * 3),
     Prefix(b"h" * 16, b"e" * 4 + bytes(4)), Prefix(b"h" * 12, b"e" * 4)],
)  # fmt: skip
def test_malformed_prefixes_are_not_sound(prefix: Prefix) -> None:
    assert named("text").is_sound
    assert not prefix.is_sound


def test_an_end_of_a_message_on_a_stride_counts_once() -> None:
    assert ends(named("a" * STRIDE, "b")) == [STRIDE, STRIDE + 1]


def test_far_into_a_prompt_strides_are_longer() -> None:
    far = ends(named("a" * (NEAR_CHARS + 3 * FAR_STRIDE)))
    assert len(far) == NEAR_CHARS // STRIDE + 3
    assert far[-1] - far[-2] == FAR_STRIDE


def test_prompts_that_begin_alike_have_the_same_first_names() -> None:
    one, other = named("system", "a" * 600 + "x"), named("system", "a" * 600 + "y" * 900)
    assert shared(one, other) == STRIDE
    assert one.hashes != other.hashes


@pytest.mark.parametrize(
    "other", [{"salt": "another"}, {"adapter": "acme/x@1"}, {"tools": b'[{"type":"function"}]'}]
)
def test_another_tenant_adapter_or_set_of_tools_shares_nothing(other: dict[str, Any]) -> None:
    assert shared(named("a" * 2000), named("a" * 2000, **other)) == 0


def test_tools_count_as_text_but_have_no_marks() -> None:
    assert ends(named("a" * 10, tools=b"t" * 5000)) == [5010]


def test_a_salt_and_an_adapter_are_told_apart() -> None:
    assert named("text", salt="a", adapter="b") != named("text", salt="a\0b", adapter="")


def test_the_number_of_hashed_prefixes_is_bounded() -> None:
    beginnings = Beginnings()
    beginnings.add("a" * 7_000_000)
    assert beginnings.full
    prefix = beginnings.named("salt", "")
    assert prefix is not None and ends(prefix)[-1] == MAX_CHARS
    many = named(*["a"] * 10_000)
    assert len(ends(many)) == MAX_MARKS


TEXTS = st.lists(st.text(max_size=700), min_size=1, max_size=6)


@given(TEXTS, TEXTS, TEXTS)
def test_names_are_the_same_exactly_as_far_as_texts_are(
    common: list[str], one: list[str], other: list[str]
) -> None:
    a, b = named("x", *common, *one), named("x", *common, *other)
    both = 1 + sum(map(len, common))
    assert shared(a, b) >= max(end for end in ends(a) if end <= both)
    for first, second in ((a, b), (b, a)):
        marks = ends(first)
        assert all(earlier < later for earlier, later in pairwise(marks))
        assert len(first.numbers()) == len(marks) <= MAX_MARKS
        assert shared(first, second) == shared(second, first)


@given(st.text(min_size=1, max_size=3000), st.integers(1, 3000))
def test_a_text_in_two_pieces_is_the_same_text(text: str, at: int) -> None:
    whole, pieces = Beginnings(), Beginnings()
    whole.add(text)
    pieces.add(text[:at])
    pieces.add(text[at:])
    for one in (whole, pieces):
        one.mark()
    assert whole.named("s", "") == pieces.named("s", "")


# --- what operations make of a body ---------------------------------------------------------------


def chat(*messages: dict[str, Any], **fields: Any) -> Prefix:
    body = {"model": "m", "messages": list(messages)} | fields
    prefix = CHAT.parse(json.dumps(body).encode()).take_prefix("salt", "")
    assert prefix is not None
    return prefix


USER = {"role": "user", "content": "Hello"}


def test_the_next_turn_shares_the_prefixes_of_the_last() -> None:
    system = {"role": "system", "content": "Be kind. " * 100}
    first = chat(system, USER)
    second = chat(system, USER, {"role": "assistant", "content": "Hi"}, USER)
    assert shared(first, second) == ends(first)[-1]


@pytest.mark.parametrize(
    "other",
    [
        {"role": "system", "content": "Hello"},
        {"role": "user", "content": [{"type": "text", "text": "Goodbye"}]},
        {"role": "user", "content": "Hello", "name": "kim"},
        {"role": "user", "content": "Hello", "reasoning": "hm"},
        {"role": "tool", "content": "Hello", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Hello",
         "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    ],
)  # fmt: skip
def test_whatever_a_template_writes_of_a_message_counts(other: dict[str, Any]) -> None:
    assert shared(chat(USER, USER), chat(other, USER)) == 0


def test_parts_are_their_text() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}, {"type": "refusal"}]
    assert chat(USER) == chat({"role": "user", "content": parts})


def test_tools_are_part_of_a_chats_beginnings() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert shared(chat(USER, tools=[tool]), chat(USER)) == 0
    assert chat(USER, tools=None) == chat(USER)


def test_many_messages_are_read_as_far_as_they_count() -> None:
    assert len(ends(chat(*[USER] * 2_000))) == MAX_MARKS


def completion(prompt: Any) -> Prefix | None:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    return COMPLETION.parse(body).take_prefix("salt", "")


def test_a_completions_text_or_tokens_have_beginnings_and_many_prompts_have_none() -> None:
    short, long = completion("a" * 600), completion("a" * 600 + "b")
    assert short is not None and long is not None
    assert shared(short, long) == STRIDE
    tokens, more = completion([7] * 300), completion([7] * 301)
    assert tokens is not None and more is not None
    assert shared(tokens, more) == STRIDE
    assert completion(["a", "b"]) is None
    assert completion([[1], [2]]) is None


def test_a_call_keeps_no_beginnings_once_they_are_taken() -> None:
    call = CHAT.parse(json.dumps({"model": "m", "messages": [USER]}).encode())
    assert call.take_prefix("salt", "a") is not None
    assert call.take_prefix("salt", "a") is None
