"""The quick starts of agent frameworks, unmodified and with their defaults, on the demo of `make
up`. The scripts are in `tests/labs/clients/frameworks`; `make frameworks` installs what they
need."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from demo import BASE, MODEL_NAME, TENANTS
from tests.environment import ROOT
from tests.stack.running import Stack, settings_free

pytestmark = [pytest.mark.vllm, pytest.mark.stack, pytest.mark.clients]

SCRIPTS = ROOT / "tests" / "labs" / "clients" / "frameworks"
SUPPORT = TENANTS[0]
OLDER = {"with_instructor", "with_llama_index"}
"""Scripts that need an older version of openai than the others."""
LIMIT_S = 300
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}
"""Settings under which the frameworks contact nothing but Lorikeet."""


def interpreter(script: Path) -> Path | None:
    """The interpreter that runs the script; None if it is not installed."""
    if script.suffix == ".mjs":
        node, modules = shutil.which("node"), SCRIPTS.parent / "node_modules" / "ai"
        return Path(node) if node is not None and modules.is_dir() else None
    name = "older-openai" if script.stem in OLDER else "frameworks"
    python = ROOT / ".venv-clients" / name / "bin" / "python"
    return python if python.exists() else None


def to_run(script: Path) -> Any:
    """The script's parameter, with a mark that skips it before a stack starts for it."""
    needs = "needs `make frameworks`" + " and Node.js" * (script.suffix == ".mjs")
    marks = pytest.mark.skipif(interpreter(script) is None, reason=needs)
    return pytest.param(script, marks=marks, id=script.name)


@pytest.mark.parametrize("script", [to_run(one) for one in sorted(SCRIPTS.glob("with_*.*"))])
def test_the_first_page_of_a_framework(stack: Stack, script: Path, tmp_path: Path) -> None:
    command = [str(interpreter(script)), str(script)]
    environment = settings_free() | OFFLINE | {
        "HOME": str(tmp_path),
        "OPENAI_BASE_URL": stack.facts["base_url"],
        "OPENAI_API_KEY": stack.key(SUPPORT.slug),
        "ANTHROPIC_BASE_URL": stack.url,
        "ANTHROPIC_API_KEY": stack.key(SUPPORT.slug),
        "MODEL": MODEL_NAME,
        "TOKENIZER": str(BASE),
    }  # fmt: skip
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
