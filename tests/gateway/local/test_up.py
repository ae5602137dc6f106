"""The output of `make up`, without starting anything."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from demo import MODEL_NAME
from gateway.management.commands.up import _Up

OPTIONS = {
    "model": "",
    "demo": MODEL_NAME,
    "host": "127.0.0.1",
    "port": 8000,
    "gateways": 1,
    "engines": 1,
    "embedding_engines": 0,
}


@pytest.mark.parametrize(
    ("version", "warned"), [((3, 11, 7), True), ((3, 11, 9), True), ((3, 11, 10), False)]
)
def test_it_warns_of_a_python_with_known_holes(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], warned: bool
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    said = io.StringIO()
    _Up(OPTIONS, Console(file=said, width=200))._warn_of_python()
    assert ("CVE-2024-7592" in said.getvalue()) == warned
