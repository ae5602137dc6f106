"""Coding agents, unmodified, work with the demo of `make up`.

`make agents` installs them from npm. Each is asked which files are in its folder: the adapter
`agent` calls the agent's shell, the agent runs the command and sends the output, and the adapter
answers. How well a model of 135M parameters says what it read is not judged. Prompts of 10,000 and
20,000 tokens are read on a CPU, which takes minutes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llm_comply.config import ComplianceConfig

from demo import TENANTS, smollm2
from tests.labs.agents.asking import BIN, FILE, MODEL, ask_claude, ask_codex
from tests.stack.running import Stack, up
from tests.stack.vllm.test_conformance import CASES, UNSUITABLE, run_case

pytestmark = [
    pytest.mark.stack,
    pytest.mark.clients,
    pytest.mark.skipif(not BIN.is_dir(), reason="needs `make agents`"),
    pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning"),  # in the suite
]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    var = tmp_path_factory.mktemp("agents") / "var"
    with up(var, LORIKEET_DEMO=smollm2.MODEL_NAME) as running:
        yield running


@pytest.fixture
def key(stack: Stack) -> str:
    return stack.key(TENANTS[0].slug)


def outcomes(stack: Stack, path: str) -> list[int]:
    """The statuses of the requests to this path."""
    lines = (json.loads(line) for line in stack.log("gateway-1").splitlines() if path in line)
    return [line["status"] for line in lines if line.get("path") == path]


def test_codex_has_its_shell_called(stack: Stack, key: str, tmp_path: Path) -> None:
    outputs = ask_codex(tmp_path, stack.facts["base_url"], key)
    assert any(FILE in output for output in outputs), outputs
    answers = outcomes(stack, "/v1/responses")
    assert len(answers) > 1 and {*answers} == {200}


def test_claude_code_has_its_shell_called(stack: Stack, key: str, tmp_path: Path) -> None:
    results = ask_claude(tmp_path, stack.url, key)
    assert any(FILE in result for result in results), results
    # The first is refused because 32,000 tokens of output do not fit, and is sent again with fewer.
    answers = outcomes(stack, "/v1/messages")
    assert answers.count(200) > 1 and {*answers} <= {200, 400}


def test_claude_code_works_with_all_of_its_tools(stack: Stack, key: str, tmp_path: Path) -> None:
    """A prompt of 20,000 tokens. Which tool the small model calls, if any, is not judged."""
    before = len(outcomes(stack, "/v1/messages"))
    ask_claude(tmp_path, stack.url, key, "default")
    answers = outcomes(stack, "/v1/messages")[before:]
    assert 200 in answers and {*answers} <= {200, 400}


@pytest.mark.parametrize(
    ("spec", "case"),
    [
        pytest.param(spec, case, id=case.id)
        for spec, cases in CASES.items()
        for case in cases
        if case.id not in UNSUITABLE
    ],
)
def test_the_conformance_suite_passes_as_it_is(
    stack: Stack, key: str, spec: str, case: Any
) -> None:
    """With a model that calls tools the cases need no bounds."""
    run_case(ComplianceConfig(stack.facts["base_url"], key, MODEL, timeout=300), spec, case)
