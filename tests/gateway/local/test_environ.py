"""Typed readers: valid values, and errors that name variable, value and what is allowed."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from typing import Any

import pytest

from gateway.database import parse_url
from gateway.start import ROOT
from inference.link.wire import MAX_BODY_BYTES
from inference.process import environ
from inference.process.environ import BadSetting

SETTINGS = str(ROOT / "platform/gateway/settings.py")


@pytest.mark.parametrize(
    ("read", "raw", "value"),
    [
        (lambda: environ.text("X"), " a ", "a"),
        (lambda: environ.text("X", "d"), "", "d"),
        (lambda: environ.text("X", ""), "", ""),
        (lambda: environ.boolean("X", False), "Yes", True),
        (lambda: environ.boolean("X", True), "off", False),
        (lambda: environ.boolean("X", True), "", True),
        (lambda: environ.integer("X", low=1, high=5), "5", 5),
        (lambda: environ.integer("X", 3), "", 3),
        (lambda: environ.choice("X", ["a", "b"]), "b", "b"),
        (lambda: environ.number("X", 1.0), "2e-4", 0.0002),
        (lambda: environ.size("X", 1), "1048576", 1 << 20),
        (lambda: environ.size("X", 1), "512M", 512 << 20),
        (lambda: environ.size("X", 1), "2GiB", 2 << 30),
        (lambda: environ.size("X", 1), "3 kb", 3 << 10),
        (lambda: environ.size("X", 1, high=2 << 20, why="so it is"), "2M", 2 << 20),
        (lambda: environ.amount("X"), "2.50", 2_500_000),
        (lambda: environ.amount("X"), "0.000001", 1),
        (lambda: environ.amount("X"), "", 0),
        (lambda: environ.words("X"), "a, b,,c ", ["a", "b", "c"]),
        (lambda: environ.words("X", ["d"]), "", ["d"]),
        (lambda: environ.secret("X"), "s" * 32, "s" * 32),
        (lambda: environ.base_url("X", "http://a"), "", "http://a"),
        (lambda: environ.base_url("X", "http://a"), "https://b/x/", "https://b/x"),
        (lambda: environ.base_urls("http://a:1, https://b/x"), "", ["http://a:1", "https://b/x"]),
    ],
)
def test_good_values(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any], raw: str, value: Any
) -> None:
    monkeypatch.setenv("X", raw)
    assert read() == value


@pytest.mark.parametrize(
    ("read", "raw", "says"),
    [
        (lambda: environ.text("X"), "", "X is not set: it must be a text"),
        (lambda: environ.amount("X"), "-1", "an amount such as 2.50"),
        (lambda: environ.amount("X"), "1.0000001", "an amount such as 2.50"),
        (lambda: environ.amount("X"), "2,50", "an amount such as 2.50"),
        (
            lambda: environ.boolean("X", False),
            "maybe",
            "X='maybe' is not allowed: it must be 1, true",
        ),
        (lambda: environ.integer("X", low=1, high=5), "6", "X='6' .* an integer from 1 to 5"),
        (lambda: environ.integer("X", low=1), "0", "at least 1"),
        (lambda: environ.integer("X"), "five", "X='five'"),
        (
            lambda: environ.choice("X", ["a", "b"]),
            "c",
            "X='c' is not allowed: it must be one of a, b",
        ),
        (lambda: environ.number("X", 1.0), "nan", "a positive number"),
        (lambda: environ.number("X", 1.0), "inf", "a positive number"),
        (lambda: environ.number("X", 1.0), "0", "a positive number"),
        (lambda: environ.size("X", 1), "big", "a size such as"),
        (lambda: environ.size("X", 1, high=2 << 20, why="so it is"), "3M", "up to 2M: so it is"),
        (lambda: environ.secret("X"), "", "X is not set: it must be a secret of 32"),
        (lambda: environ.secret("X"), "hunter2", "X has 7 characters"),
    ],
)
def test_refusals(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any], raw: str, says: str
) -> None:
    monkeypatch.setenv("X", raw)
    with pytest.raises(BadSetting, match=says):
        read()


@pytest.mark.parametrize("raw", ["", "a:8000", "ftp://a", "http://", "http://a?b", "http://a,"])
def test_invalid_base_urls(raw: str) -> None:
    with pytest.raises(BadSetting, match="is not a base URL such as"):
        environ.base_urls(raw)


def test_a_request_that_no_frame_holds_is_never_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORIKEET_MAX_REQUEST_BYTES", str(MAX_BODY_BYTES))
    assert runpy.run_path(SETTINGS)["MAX_REQUEST_BYTES"] == MAX_BODY_BYTES
    monkeypatch.setenv("LORIKEET_MAX_REQUEST_BYTES", str(MAX_BODY_BYTES + 1))
    with pytest.raises(
        BadSetting, match=r"LORIKEET_MAX_REQUEST_BYTES='\d+' .* up to 31M: the largest"
    ):
        runpy.run_path(SETTINGS)


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        ("LORIKEET_LOG_LEVEL", "loud", "='loud' is not allowed: it must be one of debug, info"),
        ("LORIKEET_DATABASE_URL", "mysql://x", " has the scheme 'mysql'"),
        ("LORIKEET_MAX_ADAPTER_BYTES", "huge", "='huge' is not allowed"),
    ],
)
def test_settings_refuse(monkeypatch: pytest.MonkeyPatch, name: str, raw: str, says: str) -> None:
    monkeypatch.setenv(name, raw)
    with pytest.raises(BadSetting, match=f"{name}{says}"):
        runpy.run_path(SETTINGS)


def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X", "hunter2")
    with pytest.raises(BadSetting) as refused:
        environ.secret("X")
    assert "hunter2" not in str(refused.value)


def test_database_urls() -> None:
    parsed = parse_url("postgresql://me:p%40ss@db:5433/lorikeet?sslmode=require")
    assert (parsed["USER"], parsed["PASSWORD"], parsed["HOST"]) == ("me", "p@ss", "db")
    assert (parsed["PORT"], parsed["NAME"]) == ("5433", "lorikeet")
    assert parsed["OPTIONS"] == {"sslmode": "require"}
    socket = parse_url("postgresql://postgres:@/postgres?host=/tmp/pg")
    assert (socket["HOST"], socket["NAME"], socket["OPTIONS"]) == ("/tmp/pg", "postgres", {})
    with pytest.raises(BadSetting, match="'mysql'"):
        parse_url("mysql://x/y")
