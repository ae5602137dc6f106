"""The format of log lines, whichever code writes them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from functools import partial
from io import StringIO
from typing import Any

import pytest
import structlog

from inference.process import logs

pytestmark = pytest.mark.pure


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    before = logging.root.handlers[:], logging.root.level
    stream = StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    logs.configure("gateway", "info", clean=partial(re.sub, "tok_[a-z]+", "[secret]"))
    yield stream
    logging.root.handlers[:], level = before
    logging.root.setLevel(level)
    structlog.reset_defaults()


def lines(written: StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_our_log_lines_and_those_of_libraries_have_one_format(written: StringIO) -> None:
    with structlog.contextvars.bound_contextvars(request_id="req_1"):
        structlog.get_logger("ours").info("done", path="/a/tok_secret")
        logging.getLogger("theirs").warning("done with %s", "tok_secret")
    ours, theirs = lines(written)
    assert theirs.pop("logger") == "theirs" and theirs["event"] == "done with [secret]"
    assert ours.pop("path") == "/a/[secret]"
    assert ours.keys() == theirs.keys()
    assert (ours["process"], ours["request_id"]) == ("gateway", "req_1")


def test_it_is_quiet(written: StringIO) -> None:
    structlog.get_logger("ours").debug("a")
    logging.getLogger("theirs").debug("a")
    logging.getLogger("httpx").info("a")
    assert lines(written) == []


def test_an_exception_is_told_whole(written: StringIO) -> None:
    try:
        raise KeyError("lost")
    except KeyError:
        structlog.get_logger("ours").exception("failed")
    (line,) = lines(written)
    assert line["level"] == "error" and line["exception"].endswith("KeyError: 'lost'")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({3, 1}, [1, 3]),
        (10**40, 10**40),
        ("\ud800", "\ud800"),
        (float("nan"), None),
        (re.compile("a"), "re.compile('a')"),
        ({(1, 2): 3}, {"(1, 2)": 3}),
    ],
)
def test_every_log_line_is_json(written: StringIO, value: Any, shown: Any) -> None:
    structlog.get_logger("ours").info("told", value=value)
    (line,) = lines(written)
    assert line["value"] == shown
