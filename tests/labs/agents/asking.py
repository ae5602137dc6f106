"""Coding agents from npm, asked in a folder with one file. They have no settings of their own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo import smollm2
from tests.stack.running import settings_free

BIN = Path(__file__).with_name("node_modules") / ".bin"
MODEL = smollm2.AGENT
FILE = "notes.txt"
QUESTION = "Which files are in this folder?"
LIMIT_S = 1800
FEW_TOOLS = "Bash,Read,Edit,Write,WebFetch,WebSearch"
"""Of Claude Code's 23 tools, whose declarations have 18,000 tokens: more than the small model can
tell apart."""


def ask_codex(home: Path, base_url: str, key: str) -> list[str]:
    """What the shell returned to the model in the agent's session."""
    (home / "config.toml").write_text(
        f"""
        model = "{MODEL}"
        model_provider = "lorikeet"
        [model_providers.lorikeet]
        name = "Lorikeet"
        base_url = "{base_url}"
        env_key = "LORIKEET_KEY"
        wire_api = "responses"
        """
    )
    command = ("codex", "exec", "--skip-git-repo-check", QUESTION)
    _run(home, *command, CODEX_HOME=str(home), LORIKEET_KEY=key)
    (session,) = home.glob("sessions/**/rollout-*.jsonl")
    items = (json.loads(line)["payload"] for line in session.read_text().splitlines())
    return [one["output"] for one in items if one.get("type") == "function_call_output"]


def ask_claude(home: Path, url: str, key: str, tools: str = FEW_TOOLS) -> list[str]:
    """What the tools (`default` for all) returned to the model in the agent's session."""
    said = _run(
        home, "claude", "-p", QUESTION, "--output-format", "stream-json", "--verbose",
        "--tools", tools,
        ANTHROPIC_BASE_URL=url,
        ANTHROPIC_AUTH_TOKEN=key,
        ANTHROPIC_MODEL=MODEL,
        ANTHROPIC_SMALL_FAST_MODEL=MODEL,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )  # fmt: skip
    return [str(result["content"]) for result in _tool_results(said)]


def _tool_results(lines: str) -> Iterator[dict[str, Any]]:
    for line in lines.splitlines():
        event = json.loads(line)
        if event["type"] == "user":
            yield from (one for one in event["message"]["content"] if one["type"] == "tool_result")


def _run(home: Path, *command: str, **environment: str) -> str:
    """The output of an agent that has no settings of its own.

    Raises:
        AssertionError: it failed.
    """
    folder = home / "work"
    folder.mkdir()
    (folder / FILE).write_text("Buy milk.\n")
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        env=settings_free() | {"HOME": str(home)} | environment,
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
