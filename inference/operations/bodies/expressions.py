"""Translates the `pattern` of a JSON schema to one that xgrammar enforces exactly.

xgrammar matches a pattern with the JSON text of the whole string: it ignores anchors and lookaheads
inside a pattern, reads unknown escapes as letters, and lets a literal quote or control character
through, which ends or breaks the JSON. So the pattern is parsed here and written again with
explicit sets of characters, where the ones that JSON escapes are written as their escapes.

The result never allows a string that the pattern does not. It may allow fewer:

- a pattern without anchors has to match the whole string, not only a part of it;
- `.`, negated sets, `\\s`, `\\S`, `\\D` and `\\W` allow no character that JSON escapes;
- `\\D` and `\\W` leave out what Unicode-aware engines (Python's) read as digits and letters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

MAX_NESTING = 32
"""Groups within each other: the parser is recursive."""

Ranges = list[tuple[int, int]]

PLAIN: Ranges = [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF)]
"""What JSON doesn't escape; no halves of surrogate pairs."""
_ESCAPED = {ord(char): rf"\\{letter}" for char, letter in zip('"\b\f\n\r\t', '"bfnrt', strict=True)}
_ESCAPED[ord("\\")] = r"\\\\"
_ESCAPED |= {code: rf"\\u{code:04x}" for code in range(0x20) if code not in _ESCAPED}
"""An expression for the JSON text of each character that JSON escapes."""

_DIGITS: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [*_DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_ALL_DIGITS: Ranges = [*_DIGITS, (0x660, 0x1C59), (0xA620, 0xABF9), (0xFF10, 0xFF19),
                       (0x104A0, 0x1FBF9)]  # fmt: skip
"""Covers every decimal digit of Unicode."""
_ALL_WORD: Ranges = [*_WORD, (0x80, 0x10FFFF)]
_ALL_SPACE: Ranges = [(0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
                      (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
                      (0xFEFF, 0xFEFF)]  # fmt: skip
_LINE_ENDS: Ranges = [(0x85, 0x85), (0x2028, 0x2029)]
_CLASSES: dict[str, tuple[Ranges, Ranges]] = {
    "d": (_DIGITS, _ALL_DIGITS), "w": (_WORD, _ALL_WORD), "s": ([(0x20, 0x20)], _ALL_SPACE)
}  # fmt: skip
"""What each class matches in all engines, and in any of them."""
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_HEX = {"x": re.compile("[0-9a-fA-F]{2}"), "u": re.compile("[0-9a-fA-F]{4}")}
_COUNT = re.compile(r"\{(\d{1,6})(,(\d{1,6})?)?\}")
_SHORT = {(0, math.inf): "*", (1, math.inf): "+"}
"""Not `?`: xgrammar reads `(ab*)?a` as `(a?b*)?a`."""
_GROUP = re.compile(r"\?(?::|P?<[A-Za-z_]\w*>)")


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression for xgrammar, and the lengths of the strings that it allows."""

    text: str
    shortest: int
    longest: float
    first: tuple[tuple[int, int], ...] = ()
    """Ranges that have all characters with which its strings begin, as JSON text."""

    @property
    def varies(self) -> bool:
        """Whether its strings have several lengths."""
        return self.shortest < self.longest


_EMPTY = Expression("", 0, 0)
_ESCAPE = (0x5C, 0x5C)
_LETTERS = frozenset((code, code) for code in range(0x80) if chr(code).isalnum())


def translate(pattern: str) -> Expression | None:
    """The pattern for xgrammar; None if no string matches it.

    Raises:
        ValueError: with the reason why it isn't supported.
    """
    parsed = _Parser(pattern).parse()
    found = parsed.written(first=True, last=True)
    return None if found is None else _anchored(found)


def of_length(shortest: int, longest: float) -> Expression:
    """Any string of plain characters with a length in these bounds."""
    most = "" if longest == math.inf else int(longest)
    text = f"{_written_set(PLAIN)}{{{shortest},{most}}}"
    return _anchored(Expression(text, shortest, longest))


def other_than(names: Iterable[str]) -> str:
    """A pattern for all strings of plain characters that are none of `names`. Its length is
    proportional to theirs; it nests as deep as the longest is long."""
    plain = {name for name in names if _is_plain(name)}
    return f"^(?:{_other_than(plain)})$"


def _is_plain(text: str) -> bool:
    return all(any(low <= ord(char) <= high for low, high in PLAIN) for char in text)


def _other_than(names: set[str]) -> str:
    following: dict[str, set[str]] = {}
    for name in names - {""}:
        following.setdefault(name[0], set()).add(name[1:])
    any_char = _written_set(PLAIN)
    unlike = _written_set(_without(PLAIN, [(ord(char), ord(char)) for char in following]))
    ways = [f"{unlike}{any_char}*"]
    ways += [f"{_literal(char)}(?:{_other_than(rest)})" for char, rest in sorted(following.items())]
    some = "|".join(ways)
    return some if "" in names else f"(?:{some}){{0,1}}"


def _anchored(found: Expression) -> Expression:
    return Expression(f"^(?:{found.text})$", found.shortest, found.longest)


# --- sets of characters --------------------------------------------------------------------------


def _without(ranges: Ranges, taken: Ranges) -> Ranges:
    """The first ranges, sorted, without the second ones."""
    left: Ranges = []
    taken = sorted(taken)
    for low, high in ranges:
        for first, last in taken:
            if last < low or first > high:
                continue
            if first > low:
                left.append((low, first - 1))
            low = last + 1
        if low <= high:
            left.append((low, high))
    return left


def _plain(ranges: Ranges) -> Ranges:
    """The part of the ranges that JSON does not escape, sorted, without overlaps."""
    return _without(PLAIN, _without([(0, 0x10FFFF)], ranges))


def _literal(char: str) -> str:
    return f"\\{char}" if char in r"^$.*+?()[]{}|/-" else char


def _written_set(ranges: Ranges) -> str:
    def of(code: int) -> str:
        return f"\\{chr(code)}" if chr(code) in r"\]^-[" else chr(code)

    return f"[{''.join(of(a) if a == b else f'{of(a)}-{of(b)}' for a, b in ranges)}]"


# --- parsed patterns -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Chars:
    """One character out of a set; `listed` are ranges that the pattern names itself."""

    listed: Ranges = field(default_factory=list)
    classed: Ranges = field(default_factory=list)

    def written(self, *, first: bool, last: bool) -> Expression | None:
        if not self.classed and len(self.listed) == 1 and self.listed[0] in _LETTERS:
            return Expression(chr(self.listed[0][0]), 1, 1, tuple(self.listed))
        ranges = _plain(self.listed + self.classed)
        escaped = [
            text for code, text in sorted(_ESCAPED.items())
            if any(low <= code <= high for low, high in self.listed)
        ]  # fmt: skip
        ways = [_written_set(ranges)] * bool(ranges) + escaped
        if not ways:
            return None
        begins = (*ranges, _ESCAPE) if escaped else tuple(ranges)
        if not escaped and len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
            return Expression(_literal(chr(ranges[0][0])), 1, 1, begins)
        text = ways[0] if len(ways) == 1 and ranges else _either(ways)
        return Expression(text, 1, 1, begins)


@dataclass(slots=True)
class _Anchor:
    char: str

    def written(self, *, first: bool, last: bool) -> Expression:
        if not (first if self.char == "^" else last):
            where = "beginning" if self.char == "^" else "end"
            raise ValueError(f"`{self.char}` is supported only at the {where} of a pattern")
        return _EMPTY


@dataclass(slots=True)
class _Repeat:
    part: _Part
    least: int
    most: float

    def written(self, *, first: bool, last: bool) -> Expression | None:
        found = self.part.written(first=False, last=False)
        if self.most == 0 or found is None:
            return _EMPTY if self.least == 0 else None
        most = "" if self.most == math.inf else int(self.most)
        count = _SHORT.get((self.least, self.most)) or f"{{{self.least},{most}}}"
        longest = self.most * found.longest if found.longest else 0
        least = self.least * found.shortest
        return Expression(f"(?:{found.text}){count}", least, longest, found.first)


@dataclass(slots=True)
class _Sequence:
    parts: list[_Part]

    def written(self, *, first: bool, last: bool) -> Expression | None:
        found: list[Expression] = []
        solid = [i for i, part in enumerate(self.parts) if not isinstance(part, _Anchor)] or [0]
        for i, part in enumerate(self.parts):
            one = part.written(first=first and i <= solid[0], last=last and i >= solid[-1])
            if one is None:
                return None
            found.append(one)
        beginnings: tuple[tuple[int, int], ...] = ()
        for one in found:
            beginnings += one.first
            if one.shortest > 0:
                break
        return Expression(
            "".join(one.text for one in found),
            sum(one.shortest for one in found),
            sum(one.longest for one in found),
            beginnings,
        )


@dataclass(slots=True)
class _Choice:
    ways: list[_Sequence]

    def written(self, *, first: bool, last: bool) -> Expression | None:
        tried = [way.written(first=first, last=last) for way in self.ways]
        found = [way for way in tried if way is not None]
        if not found:
            return None
        _check_distinct(found)
        return Expression(
            _either([way.text for way in found]),
            min(way.shortest for way in found),
            max(way.longest for way in found),
            tuple(one for way in found for one in way.first),
        )


_Part = _Chars | _Anchor | _Repeat | _Choice


def _check_distinct(ways: list[Expression]) -> None:
    """Check that xgrammar doesn't merge two of the ways, as it does with `b|b{0,2}`.

    Raises:
        ValueError: it may.
    """
    for i, way in enumerate(ways):
        for other in ways[:i]:
            if (way.varies or other.varies) and _overlap(way.first, other.first):
                raise ValueError(
                    "alternatives (`|`) that begin with the same character must each have a "
                    "fixed length"
                )


def _overlap(first: Iterable[tuple[int, int]], second: Iterable[tuple[int, int]]) -> bool:
    ends = sorted(
        [(low, high, 0) for low, high in first] + [(low, high, 1) for low, high in second]
    )
    reached = [-1, -1]
    for low, high, side in ends:
        if low <= reached[1 - side]:
            return True
        reached[side] = max(reached[side], high)
    return False


def _either(ways: list[str]) -> str:
    """Any of the expressions. An empty one is written as an optional rest."""
    some = "|".join(way for way in ways if way)
    if not some:
        return ""
    return f"(?:{some})" if all(ways) else f"(?:{some}){{0,1}}"


# --- parser --------------------------------------------------------------------------------------


class _Parser:
    """Reads the part of ECMA-262's syntax that Python reads in the same way."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at, self._depth = pattern, 0, 0

    def parse(self) -> _Choice:
        found = self._choice()
        if self._at < len(self._pattern):
            self._refuse("`)` closes no group")
        return found

    def _refuse(self, reason: str) -> NoReturn:
        raise ValueError(reason)

    def _next(self) -> str:
        """The next character, empty at the end."""
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._next()
        self._at += 1
        return char

    def _choice(self) -> _Choice:
        ways = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            ways.append(self._sequence())
        return _Choice(ways)

    def _sequence(self) -> _Sequence:
        parts: list[_Part] = []
        while self._next() not in ("", "|", ")"):
            part = self._atom()
            parts.append(part if isinstance(part, _Anchor) else self._repeated(part))
        return _Sequence(parts)

    def _repeated(self, part: _Part) -> _Part:
        char = self._next()
        if char in ("*", "+", "?"):
            self._at += 1
            least, most = int(char == "+"), 1 if char == "?" else math.inf
        elif found := _COUNT.match(self._pattern, self._at):
            self._at = found.end()
            least = int(found[1])
            most = least if found[2] is None else int(found[3]) if found[3] else math.inf
            if most < least:
                self._refuse(f"`{found[0]}` has its bounds in the wrong order")
        else:
            return part
        if self._next() == "?":  # lazy: the same strings match
            self._at += 1
        return _Repeat(part, least, most)

    def _atom(self) -> _Part:
        char = self._take()
        match char:
            case "^" | "$":
                return _Anchor(char)
            case ".":
                return _Chars(classed=_without(PLAIN, _LINE_ENDS))
            case "(":
                return self._group()
            case "[":
                return self._set()
            case "\\":
                return self._escape(in_set=False)
            case "*" | "+" | "?" | "{":
                self._refuse(f"`{char}` repeats nothing; write `\\{char}` for the character")
            case _:
                return _Chars([(ord(char), ord(char))])

    def _group(self) -> _Choice:
        if self._next() == "?":
            head = _GROUP.match(self._pattern, self._at)
            if head is None:
                self._refuse("lookarounds and flags (`(?...)`) are not supported")
            self._at = head.end()
        self._depth += 1
        if self._depth > MAX_NESTING:
            self._refuse(f"groups are nested more than {MAX_NESTING} levels deep")
        found = self._choice()
        self._depth -= 1
        if self._take() != ")":
            self._refuse("`(` opens a group that is not closed")
        return found

    def _set(self) -> _Chars:
        negated = self._next() == "^"
        self._at += negated
        found, excluded = _Chars(), Ranges()
        if self._next() == "]":
            self._refuse("`[]` and `[^]` are not supported")
        while self._next() != "]":
            part, widest = self._member()
            found.listed += part.listed
            found.classed += part.classed
            excluded += widest
        self._at += 1
        return _Chars(classed=_without(PLAIN, excluded)) if negated else found

    def _member(self) -> tuple[_Chars, Ranges]:
        """A part of a set, and all that some engine may read it as."""
        low = self._set_char()
        if isinstance(low, str):
            narrow, wide = _CLASSES[low.lower()]
            if low.islower():
                return _Chars(classed=narrow), wide
            return _Chars(classed=_without(PLAIN, wide)), _without([(0, 0x10FFFF)], narrow)
        high: int | str = low
        if self._next() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("", "]"):
            self._at += 1
            high = self._set_char()
        if isinstance(high, str) or high < low:
            self._refuse("a set has a range that is not one of characters in order")
        return _Chars([(low, high)]), [(low, high)]

    def _set_char(self) -> int | str:
        """A character's code, or the letter of a class."""
        char = self._take()
        if not char:
            self._refuse("`[` opens a set that is not closed")
        if char != "\\":
            return ord(char)
        if (letter := self._next()).lower() in _CLASSES:
            self._at += 1
            return letter
        if letter == "b":
            self._at += 1
            return 8
        return self._escape(in_set=True).listed[0][0]

    def _escape(self, *, in_set: bool) -> _Chars:
        char = self._take()
        if not in_set and char.lower() in _CLASSES:
            self._at -= 2
            return self._member()[0]
        if char in _CONTROLS and not (char == "0" and self._next().isdecimal()):
            code = _CONTROLS[char]
        elif char in _HEX and (digits := _HEX[char].match(self._pattern, self._at)):
            self._at = digits.end()
            code = int(digits[0], 16)
        elif not char or char.isalnum():
            self._refuse(f"the escape `\\{char}` is not supported")
        else:
            code = ord(char)
        return _Chars([(code, code)])
