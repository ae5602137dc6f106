"""Typed readers of environment variables; errors name variable, value and what is allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TypeVar

T = TypeVar("T")


class BadSetting(Exception):
    """An environment variable is missing or has a value that is not allowed."""


def _read(name: str, default: T | None, parse: Callable[[str], T], allowed: str) -> T:
    raw = os.environ.get(name, "").strip()
    if not raw:
        if default is None:
            raise BadSetting(f"{name} is not set: it must be {allowed}")
        return default
    try:
        return parse(raw)
    except ValueError:
        raise BadSetting(f"{name}={raw!r} is not allowed: it must be {allowed}") from None


def text(name: str, default: str | None = None, *, allowed: str = "a text") -> str:
    """A text; required if there is no default."""
    return _read(name, default, str, allowed)


def secret(name: str, default: str | None = None, *, min_length: int = 32) -> str:
    """A secret of at least `min_length` characters; never shown in an error."""
    raw = os.environ.get(name, "").strip() or default
    if raw is None:
        raise BadSetting(f"{name} is not set: it must be a secret of {min_length}+ characters")
    if len(raw) < min_length:
        raise BadSetting(f"{name} has {len(raw)} characters: it must have at least {min_length}")
    return raw


def choice(name: str, choices: Sequence[str], default: str | None = None) -> str:
    """One of `choices`."""

    def parse(raw: str) -> str:
        if raw not in choices:
            raise ValueError
        return raw

    return _read(name, default, parse, "one of " + ", ".join(choices))


def boolean(name: str, default: bool) -> bool:
    """1/true/yes/on or 0/false/no/off."""
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}

    def parse(raw: str) -> bool:
        try:
            return words[raw.lower()]
        except KeyError:
            raise ValueError from None

    return _read(name, default, parse, "1, true, yes, on, 0, false, no or off")


def integer(name: str, default: int | None = None, *, low: int = 0, high: int | None = None) -> int:
    """An integer from `low` to `high`."""
    allowed = (
        f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    )

    def parse(raw: str) -> int:
        value = int(raw)
        if value < low or (high is not None and value > high):
            raise ValueError
        return value

    return _read(name, default, parse, allowed)


def amount(name: str) -> int:
    """A sum of money, in micro-units of the currency; 0 if not set."""

    def parse(raw: str) -> int:
        if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", raw):
            raise ValueError
        return int(Decimal(raw).scaleb(6))

    return _read(name, 0, parse, "an amount such as 2.50, with at most six decimal places")


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(raw: str) -> int:
    """Bytes in a size such as `512M`, `2.5GiB` or `1048576`.

    Raises:
        ValueError: it is not a size.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?", raw, re.IGNORECASE)
    if found is None:
        raise ValueError(raw)
    return int(Decimal(found[1]) * _UNITS[found[2].upper()])


def size(name: str, default: int, *, high: int | None = None, why: str = "") -> int:
    """A size in bytes: a whole number, or one with K, M, G or T (powers of 1,024); up to `high`,
    for the reason `why`."""
    allowed = "a size such as 1048576, 512M or 2G"
    if high is not None:
        allowed += f", up to {high >> 20}M: {why}"

    def parse(raw: str) -> int:
        value = parse_size(raw)
        if high is not None and value > high:
            raise ValueError
        return value

    return _read(name, default, parse, allowed)


def base_urls(raw: str) -> list[str]:
    """URLs of servers, separated by commas.

    Raises:
        BadSetting: one of them is not a base URL.
    """
    urls = [url.strip() for url in raw.split(",")]
    for url in urls:
        if re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url) is None:
            raise BadSetting(f"{url!r} is not a base URL such as http://gateway:8000")
    return urls


def base_url(name: str, default: str) -> str:
    """The base URL of one server, without a trailing slash."""
    raw = os.environ.get(name, "").strip() or default
    try:
        (url,) = base_urls(raw)
    except (BadSetting, ValueError):
        allowed = "one base URL such as https://api.example.com"
        raise BadSetting(f"{name}={raw!r} is not allowed: it must be {allowed}") from None
    return url.rstrip("/")


def words(name: str, default: Sequence[str] = ()) -> list[str]:
    """A list separated by commas."""
    raw = os.environ.get(name, "").strip()
    return [word.strip() for word in raw.split(",") if word.strip()] if raw else list(default)


def mapping(name: str) -> dict[str, str]:
    """Pairs such as `one=this,two=that`; empty if it is not set."""

    def parse(raw: str) -> dict[str, str]:
        pairs = [pair.partition("=") for pair in raw.split(",")]
        if not all(key.strip() and value.strip() for key, _, value in pairs):
            raise ValueError
        return {key.strip(): value.strip() for key, _, value in pairs}

    return _read(name, {}, parse, "pairs such as one=this,two=that")


def number(name: str, default: float) -> float:
    """A positive number."""

    def parse(raw: str) -> float:
        value = float(raw)
        if not 0 < value < float("inf"):
            raise ValueError
        return value

    return _read(name, default, parse, "a positive number such as 0.0002")
