"""Coding agents, unmodified and with their defaults, work with the demo of `make up`.

`make agents` installs them from npm. Each is asked which files are in its folder: the adapter
`agent` calls the agent's shell, the agent runs the command and sends the output, and the adapter
answers. How well a model of 135M parameters says what it read is not judged. Prompts of 10,000 and
20,000 tokens are read on a CPU, which takes minutes.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llm_comply.config import ComplianceConfig

from demo import TENANTS, smollm2
from tests.stack.running import Stack, settings_free, up
from tests.stack.vllm.test_conformance import CASES, UNSUITABLE, run_case

BIN = Path(__file__).with_name("node_modules") / ".bin"
MODEL = smollm2.AGENT
FILE = "notes.txt"
QUESTION = "Which files are in this folder?"
LIMIT_S = 1200

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


def answer(folder: Path, *command: str, **environment: str) -> str:
    """What the agent says in a folder with one file, and with no settings of its own."""
    (folder / "work").mkdir()
    (folder / "work" / FILE).write_text("Buy milk.\n")
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        env=settings_free() | {"HOME": str(folder)} | environment,
        cwd=folder / "work",
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def outcomes(stack: Stack, path: str) -> list[int]:
    """The statuses of the requests to this path."""
    lines = (json.loads(line) for line in stack.log("gateway-1").splitlines() if path in line)
    return [line["status"] for line in lines if line.get("path") == path]


def test_codex_has_its_shell_called(stack: Stack, key: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        f"""
        model = "{MODEL}"
        model_provider = "lorikeet"
        [model_providers.lorikeet]
        name = "Lorikeet"
        base_url = "{stack.facts["base_url"]}"
        env_key = "LORIKEET_KEY"
        wire_api = "responses"
        """
    )
    said = answer(
        tmp_path, "codex", "exec", "--skip-git-repo-check", QUESTION,
        CODEX_HOME=str(tmp_path), LORIKEET_KEY=key,
    )  # fmt: skip
    assert said.strip()
    (session,) = tmp_path.glob("sessions/**/rollout-*.jsonl")
    items = [json.loads(line)["payload"] for line in session.read_text().splitlines()]
    outputs = [one["output"] for one in items if one.get("type") == "function_call_output"]
    assert any(FILE in output for output in outputs), outputs
    answers = outcomes(stack, "/v1/responses")
    assert len(answers) > 1 and {*answers} == {200}


def test_claude_code_has_its_shell_called(stack: Stack, key: str, tmp_path: Path) -> None:
    said = answer(
        tmp_path, "claude", "-p", QUESTION, "--output-format", "stream-json", "--verbose",
        ANTHROPIC_BASE_URL=stack.url,
        ANTHROPIC_AUTH_TOKEN=key,
        ANTHROPIC_MODEL=MODEL,
        ANTHROPIC_SMALL_FAST_MODEL=MODEL,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )  # fmt: skip
    results = [line for line in said.splitlines() if '"tool_result"' in line]
    assert any(FILE in result for result in results), said
    # The first is refused because 32,000 tokens of output do not fit, and is sent again with fewer.
    answers = outcomes(stack, "/v1/messages")
    assert answers.count(200) > 1 and {*answers} <= {200, 400}


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
