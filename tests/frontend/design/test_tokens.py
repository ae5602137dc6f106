"""The contrast of design tokens, computed because a browser's checks do not see a canvas."""

from __future__ import annotations

import math
import re
from itertools import combinations, product
from pathlib import Path

import pytest

import frontend

CSS = Path(frontend.__file__).parent / "static" / "css"
PAIR = re.compile(r"--([\w-]+): light-dark\((#\w+), (#\w+)\);")
COLOUR = re.compile(r"#[0-9a-f]{3,8}\b|\b(?:rgb|hsl|oklch|lab)a?\([^)]*\)", re.I)
OUTSIDE = {"#fff", "rgb(10 12 16 / 0.45)"}
"""Colours that are no tokens: text on the accent in both themes, and the overlay of the page."""

GROUNDS = ("canvas", "surface", "sunken")
WORDS = ("text", "text-2", "text-3", "accent", "ok", "warn", "bad")
SERIES = ("c1", "c2", "c3", "c4", "c5")
THEMES = ("light", "dark")
TEXT, GRAPHIC = 4.5, 3.0
"""WCAG 2.2: the least contrast of text (1.4.3) and of lines and borders with a meaning (1.4.11)."""
APART = 0.12
"""Least distance in OKLab of two series: several times what is just noticeable side by side. For
people whom that does not help, series also have stripes."""

Colour = tuple[float, float, float]
"""Linear red, green and blue, from 0 to 1."""


def tokens(theme: str) -> dict[str, Colour]:
    """The colours of one theme by their names, and white."""
    found = PAIR.findall((CSS / "tokens.css").read_text())
    named = {name: light if theme == "light" else dark for name, light, dark in found}
    return {name: linear(text) for name, text in (named | {"white": "#fff"}).items()}


def linear(text: str) -> Colour:
    """`#rgb` or `#rrggbb` without the gamma of sRGB."""
    digits = text[1:] if len(text) == 7 else "".join(2 * digit for digit in text[1:])
    red, green, blue = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return _without_gamma(red), _without_gamma(green), _without_gamma(blue)


def _without_gamma(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def contrast(one: Colour, other: Colour) -> float:
    """The contrast ratio as WCAG 2.2 defines it, from 1 to 21."""
    dark, light = sorted(
        0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in (one, other)
    )
    return (light + 0.05) / (dark + 0.05)


def distance(one: Colour, other: Colour) -> float:
    """The distance in OKLab: 0 between equal colours, 1 between black and white."""
    return math.dist(_oklab(one), _oklab(other))


def _oklab(colour: Colour) -> Colour:
    """https://bottosson.github.io/posts/oklab/"""
    red, green, blue = colour
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def test_contrast_and_distance_of_colours() -> None:
    black, white = linear("#000"), linear("#ffffff")
    assert contrast(black, white) == pytest.approx(21)
    assert contrast(linear("#777"), white) == pytest.approx(4.48, abs=0.005)
    assert distance(black, white) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("theme", THEMES)
def test_text_can_be_read_on_every_ground(theme: str) -> None:
    pairs = [*product(WORDS, GROUNDS), ("accent", "accent-soft"), ("text", "accent-soft")]
    assert weak(theme, [*pairs, ("white", "accent-solid")], TEXT) == {}


@pytest.mark.parametrize("theme", THEMES)
def test_fields_and_chart_lines_stand_out(theme: str) -> None:
    pairs = [*product(("field", "accent", "accent-solid"), GROUNDS)]
    assert weak(theme, [*pairs, *product(SERIES, ["surface"])], GRAPHIC) == {}


def weak(theme: str, pairs: list[tuple[str, str]], least: float) -> dict[tuple[str, str], float]:
    """The pairs whose contrast is below `least`, with their contrast."""
    known = tokens(theme)
    found = {pair: contrast(known[pair[0]], known[pair[1]]) for pair in pairs}
    return {pair: round(ratio, 2) for pair, ratio in found.items() if ratio < least}


@pytest.mark.parametrize("theme", THEMES)
def test_series_are_told_apart(theme: str) -> None:
    known = tokens(theme)
    close = {pair: distance(known[pair[0]], known[pair[1]]) for pair in combinations(SERIES, 2)}
    assert {pair: round(apart, 3) for pair, apart in close.items() if apart < APART} == {}


def test_every_colour_is_a_token() -> None:
    """The tests above see only tokens."""
    stray = {
        (file.name, colour)
        for file in CSS.glob("*.css")
        for colour in COLOUR.findall(PAIR.sub("", file.read_text()))
        if colour not in OUTSIDE
    }
    assert stray == set()
