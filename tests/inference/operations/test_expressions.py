"""Patterns as an engine gets them."""

from __future__ import annotations

import math
import re

import pytest

from inference.operations.bodies.expressions import MAX_NESTING, of_length, other_than, translate

pytestmark = pytest.mark.pure

_ANY = "[ -!#-\\[\\]-\x84\x86-\u2027\u202a-\ud7ff\ue000-\U0010ffff]"


@pytest.mark.parametrize(
    ("pattern", "text", "lengths"),
    [
        ("", "", (0, 0)),
        ("^$", "", (0, 0)),
        ("^ab$", "(?:ab)", (2, 2)),
        (r"\.\/\u0041\x42\_", r"(?:\.\/AB_)", (5, 5)),
        (r"\0", r"(?:(?:\\u0000))", (1, 1)),
        (r'"\n', r'(?:(?:\\")(?:\\n))', (2, 2)),
        (r"[\\c\d]", r"(?:(?:[0-9c]|\\\\))", (1, 1)),
        (r"[\b]", r"(?:(?:\\b))", (1, 1)),
        (r"[^\s\S]|a", "(?:a)", (1, 1)),
        ("[a-c-]", r"(?:[\-a-c])", (1, 1)),
        ("(^a|b$)", "(?:(?:a|b))", (1, 1)),
        ("(?:a|)b", "(?:(?:a){0,1}b)", (1, 2)),
        ("(?<n>a)(?P<m>b)", "(?:(?:a)(?:b))", (2, 2)),
        ("(a+?b*)*", "(?:(?:(?:(?:a)+(?:b)*))*)", (0, math.inf)),
        ("a?b{2}c{1,}d{2,3}", "(?:(?:a){0,1}(?:b){2,2}(?:c)+(?:d){2,3})", (5, math.inf)),
        ("a{0}", "", (0, 0)),
        (".", rf"(?:{_ANY})", (1, 1)),
        (r"\ud800?", "", (0, 0)),
        ("(|)*", "(?:(?:)*)", (0, 0)),
        ("b{1,2}|a+", "(?:(?:b){1,2}|(?:a)+)", (1, math.inf)),
    ],
)
def test_a_pattern_is_translated(pattern: str, text: str, lengths: tuple[int, float]) -> None:
    found = translate(pattern)
    assert found is not None
    assert (found.text, (found.shortest, found.longest)) == (f"^(?:{text})$", lengths)


@pytest.mark.parametrize("pattern", [r"\ud800", r"a\ud800", r"(\ud800)+", r"\ud800|\udfff"])
def test_what_no_string_matches_is_none(pattern: str) -> None:
    assert translate(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a^b", "only at the beginning"),
        ("(a$)b", "only at the end"),
        ("a)", "closes no group"),
        ("(a", "is not closed"),
        ("[a", "is not closed"),
        ("[]a]", "are not supported"),
        ("(?!a)", "lookarounds"),
        ("(?i)a", "flags"),
        ("a**", "repeats nothing"),
        ("a{x}", "repeats nothing"),
        ("a{3,2}", "wrong order"),
        ("[z-a]", "in order"),
        (r"[a-\d]", "in order"),
        (r"\b", r"`\b`"),
        (r"\p{L}", r"`\p`"),
        (r"\01", r"`\0`"),
        ("a\\", "the escape"),
        ("b|b{0,2}", "begin with the same"),
        ("(" * (MAX_NESTING + 1) + ")" * (MAX_NESTING + 1), "nested more"),
    ],
)
def test_what_is_not_supported_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        translate(pattern)


@pytest.mark.parametrize("letter", "dDwWsS")
def test_a_class_matches_only_what_all_engines_match(letter: str) -> None:
    for pattern in (f"\\{letter}", f"[^\\{letter.swapcase()}]"):
        found = translate(pattern)
        assert found is not None
        ours, python = re.compile(found.text), re.compile(pattern)
        for code in [*range(0x3000), *range(0xA000, 0xAC00), *range(0xFE00, 0x11000, 7)]:
            assert not ours.search(chr(code)) or python.search(chr(code)), hex(code)


def test_any_string_of_a_length_and_any_but_some_names() -> None:
    assert re.fullmatch(of_length(2, 3).text, "ab")
    assert not re.fullmatch(of_length(2, math.inf).text, "a")
    names = {"", "a", "ab", "b", 'q"'}
    others = re.compile(other_than(names))
    for text in ("", "a", "ab", "b", "abc", "c", "aa", "ba", "]"):
        assert bool(others.fullmatch(text)) == (text not in names)
