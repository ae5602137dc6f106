"""Coding agents, unmodified and with their defaults, ask a complete Lorikeet.

`make agents` installs them from npm. The model has random weights, a long context and a template
with tools: this shows that each request is accepted and each answer understood, not what a good
model would make of it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import TENANTS
from tests.engine.factory import make_base
from tests.stack.running import Stack, settings_free, up

BIN = Path(__file__).with_name("node_modules") / ".bin"
MODEL = "random"
CONTEXT = 131_072
ENDS = list(range(200, 400))
"""Tokens that end an answer: half of all, so that it is short."""
ENGINE = "--tool-call-parser hermes --max-num-batched-tokens 2048"
QUESTION = "Say hello."
LIMIT_S = 300

pytestmark = [
    pytest.mark.stack,
    pytest.mark.clients,
    pytest.mark.skipif(not BIN.is_dir(), reason="needs `make agents`"),
]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("agents")
    base = make_base(folder / MODEL, max_position_embeddings=CONTEXT)
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": ENDS}))
    with up(folder / "var", LORIKEET_MODEL=str(base), LORIKEET_ENGINE_OPTIONS=ENGINE) as running:
        yield running


def answer(folder: Path, *command: str, **environment: str) -> None:
    """Let the agent ask, in an empty folder and with no settings of its own."""
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        env=settings_free() | {"HOME": str(folder)} | environment, cwd=folder,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def outcomes(stack: Stack, path: str) -> list[int]:
    """The statuses of the requests to this path."""
    lines = (json.loads(line) for line in stack.log("gateway-1").splitlines() if path in line)
    return [line["status"] for line in lines if line.get("path") == path]


def test_codex(stack: Stack, tmp_path: Path) -> None:
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
    answer(
        tmp_path, "codex", "exec", "--skip-git-repo-check", QUESTION,
        CODEX_HOME=str(tmp_path), LORIKEET_KEY=stack.key(TENANTS[0].slug),
    )  # fmt: skip
    assert {*outcomes(stack, "/v1/responses")} == {200}


def test_claude_code(stack: Stack, tmp_path: Path) -> None:
    answer(
        tmp_path, "claude", "-p", QUESTION,
        ANTHROPIC_BASE_URL=stack.url,
        ANTHROPIC_AUTH_TOKEN=stack.key(TENANTS[0].slug),
        ANTHROPIC_MODEL=MODEL,
        ANTHROPIC_SMALL_FAST_MODEL=MODEL,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )  # fmt: skip
    assert {*outcomes(stack, "/v1/messages")} == {200}
