"""Reading the lines of a batch's file in portions."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tenants.batches import sources
from tenants.batches.sources import FileLines

pytestmark = pytest.mark.pure


def written(path: Path, count: int) -> Path:
    """A file of `count` requests, with an empty line before each."""
    told = {"custom_id": "a", "method": "POST", "url": "/"}
    lines = [json.dumps(told | {"body": {"n": n}}) for n in range(count)]
    path.write_text("".join(f"\n{line}\n" for line in lines))
    return path


def test_lines_are_read_in_groups_without_those_that_are_done(tmp_path: Path) -> None:
    path = written(tmp_path / "lines", 2 * sources.READ_AT_ONCE)
    with closing(FileLines(path.open("rb"), done={2, 6})) as source:
        first = source.ahead()
        assert [line.number for line, _ in first[:3]] == [4, 8, 10]
        assert len(first) == sources.READ_AT_ONCE and not source.exhausted
        line, body = first[-1]
        assert source.body(line) == body == b'{"n": 65}'
        rest = source.ahead()
        assert len(rest) == sources.READ_AT_ONCE - 2 and source.exhausted
        assert source.ahead() == []


def test_a_large_line_is_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "READ_BYTES", 1)
    with closing(FileLines(written(tmp_path / "lines", 2).open("rb"), done=())) as source:
        assert [len(source.ahead()) for _ in range(3)] == [1, 1, 0] and source.exhausted
