"""Reads the Python files of the wheel of vLLM in VLLM_WHEEL (`make vllm-wheel`)."""

from __future__ import annotations

import ast
import os
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

import inference.agent.engines.vllm as package
from inference.agent.engines.vllm.reliances import ReleaseSource, missing

pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ReleaseSource:
    """The wheel's source."""
    if "VLLM_WHEEL" not in os.environ:
        pytest.skip("no wheel is named in VLLM_WHEEL")
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(os.environ["VLLM_WHEEL"]) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(".py")])
    return ReleaseSource(folder)


def test_it_has_everything_in_the_table(source: ReleaseSource) -> None:
    assert missing(source) == {}


def test_it_has_everything_that_is_imported(source: ReleaseSource) -> None:
    lacking = []
    for file in Path(package.__path__[0]).rglob("*.py"):
        for name, modules in imported_from_vllm(file).items():
            if not any(source.offers(module, name) for module in modules):
                lacking.append((file.name, name, modules))
    assert lacking == []


def imported_from_vllm(file: Path) -> dict[str, list[str]]:
    """Each name, with the modules in which the file looks for it."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vllm":
            for alias in node.names:
                found[alias.name].append(node.module)
    return found
