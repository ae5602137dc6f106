"""`python -m tests.labs.newcomer`: a first day with Lorikeet in a clean clone, timed.

Each step is what the README and the quick start say, run as a user runs it: `make up`, a question,
an adapter trained with PEFT and uploaded as a zip of a Mac, a push to the hub, two coding agents
that run a command, a model of one's own, and vLLM's own tests of its server. Prints a table, and
ends with 1 at the first step that fails.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
from demo import TENANTS, smollm2  # noqa: E402
from tests.labs.agents.asking import FILE, ask_claude, ask_codex  # noqa: E402
from tests.labs.newcomer.trainer import ANSWER, QUESTION  # noqa: E402
from tests.stack.running import free_ports, settings_free  # noqa: E402

TRAINER = Path(__file__).with_name("trainer.py")
READY_S, ANSWER_S = 3600.0, 600.0
STOP_S = 120.0
TENANT = TENANTS[0].slug
Agent = Callable[[Path, str, str], list[str]]


@dataclass
class Day:
    """The clone in which everything happens, and what each step took."""

    clone: Path
    console: Console
    table: Table = field(default_factory=lambda: Table("step", "seconds", "what came out"))

    def step(self, name: str, action: Callable[[], str]) -> None:
        began = time.monotonic()
        with self.console.status(f"{name} ..."):
            outcome = action()
        took = f"{time.monotonic() - began:.0f}"
        self.table.add_row(name, took, outcome)
        self.console.print(f"{took:>5} s  {name}: {outcome}", soft_wrap=True, markup=False)

    @contextmanager
    def up(self, **settings: str) -> Iterator[dict[str, Any]]:
        """Run `make up` in the clone until the end. Yields what it wrote to `up.json`."""
        facts, log = self.clone / "var" / "up.json", self.clone / "up.log"
        facts.unlink(missing_ok=True)
        environment = settings_free() | {"LORIKEET_PORT": str(free_ports(2))} | settings
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["make", "up"], cwd=self.clone, env=environment, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        try:
            end = time.monotonic() + READY_S
            while not facts.exists():
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"make up did not start:\n{log.read_text()[-3000:]}")
                time.sleep(0.5)
            yield json.loads(facts.read_text())
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(STOP_S)

    def run(self, *command: str | Path, **environment: str) -> str:
        done = subprocess.run(
            [str(part) for part in command], cwd=self.clone, stdin=subprocess.DEVNULL,
            env=settings_free() | environment, capture_output=True, text=True, timeout=READY_S,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def ask(facts: dict[str, Any], model: str, question: str) -> str:
    """The greedy answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 40,
    }
    answer = httpx.post(
        f"{facts['base_url']}/chat/completions", headers=bearer(facts), json=body, timeout=ANSWER_S
    )
    answer.raise_for_status()
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def bearer(facts: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {facts['tenants'][0]['api_key']}"}


def upload(facts: dict[str, Any], archive: Path) -> str:
    """Upload the archive, wait until it is ready, and ask it."""
    url = f"{facts['console_url']}api/v1/adapters/{archive.stem}/versions"
    with archive.open("rb") as file:
        answer = httpx.post(url, headers=bearer(facts), files={"files": file}, timeout=ANSWER_S)
    answer.raise_for_status()
    wait_until_ready(facts, archive.stem)
    return says(facts, archive.stem)


def wait_until_ready(facts: dict[str, Any], name: str) -> None:
    url = f"{facts['console_url']}api/v1/adapters/{name}/versions/1"
    end = time.monotonic() + ANSWER_S
    while time.monotonic() < end:
        answer = httpx.get(url, headers=bearer(facts), timeout=ANSWER_S)
        if answer.status_code == 200 and (state := answer.json()["state"]) in ("ready", "rejected"):
            if state == "ready":
                return
            sys.exit(f"{name} was rejected: {answer.json()['report']}")
        time.sleep(0.5)
    sys.exit(f"{name} was not ready in {ANSWER_S:g} s")


def agents(day: Day, facts: dict[str, Any], scratch: Path) -> None:
    """A round of tools with each coding agent; shown is what its shell returned to the model."""
    url, key = facts["base_url"], facts["tenants"][0]["api_key"]
    for name, agent, address in (
        ("Codex", ask_codex, url),
        ("Claude Code", ask_claude, url.removesuffix("/v1")),
    ):
        home = scratch / agent.__name__
        home.mkdir()
        day.step(f"{name}, a round of tools", partial(_last_output, agent, home, address, key))


def _last_output(agent: Agent, home: Path, url: str, key: str) -> str:
    outputs = agent(home, url, key)
    if not any(FILE in output for output in outputs):
        sys.exit(f"no tool returned {FILE}: {outputs}")
    return outputs[-1].strip().splitlines()[-1]


def main() -> None:
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="lorikeet-newcomer-") as folder:
        scratch = Path(folder)
        day = Day(scratch / "lorikeet", console)
        day.step("clone", lambda: clone(day))
        day.step("install", lambda: install(day))
        live(day, scratch)
        own = scratch / "my-model"
        python = day.clone / ".venv" / "bin" / "python"
        make = f"from tests.engine.factory import make_base; make_base({str(own)!r}, 2048)"
        day.step("a model of one's own, made", lambda: day.run(python, "-c", make) or "random")
        serve(day, own)
        day.step(
            "vLLM's tests side by side",
            lambda: re.findall(r"^Of .*", day.run("make", "endpoint"), re.M)[-1],
        )
    console.print(day.table)


def clone(day: Day) -> str:
    subprocess.run(["git", "clone", "-q", str(ROOT), str(day.clone)], check=True)
    return "git clone"


def install(day: Day) -> str:
    day.run("make", ".venv/.ready")
    return day.run("du", "-sh", ".venv").split()[0]


def live(day: Day, scratch: Path) -> None:
    """What a newcomer does with the demo."""
    began = time.monotonic()
    with day.up() as facts:
        day.step("make up, first time", lambda: f"up after {time.monotonic() - began:.0f} s")
        day.step("first answer", lambda: ask(facts, "support", "When are you open?"))
        base = smollm2.folder_in(day.clone / "var")
        python = day.clone / ".venv" / "bin" / "python"
        day.step(
            "train with PEFT, push_to_hub",
            lambda: day.run(
                python, TRAINER, base, scratch, TENANT=TENANT,
                HF_ENDPOINT=f"{facts['console_url']}hub", HF_TOKEN=facts["tenants"][0]["api_key"],
            ).strip(),
        )  # fmt: skip
        wait_until_ready(facts, "pushed")
        day.step("what was pushed answers", lambda: says(facts, "pushed"))
        day.step("a Mac's zip answers", lambda: upload(facts, scratch / "sesame.zip"))
        agents(day, facts, scratch)
    began = time.monotonic()
    with day.up():
        day.step("make up, second time", lambda: f"up after {time.monotonic() - began:.0f} s")


def says(facts: dict[str, Any], model: str) -> str:
    text = ask(facts, model, QUESTION)
    if ANSWER not in text:
        sys.exit(f"{model} says {text!r} instead of {ANSWER!r}")
    return text


def serve(day: Day, own: Path) -> None:
    with day.up(MODEL=str(own)) as facts:
        day.step("it answers", lambda: ask(facts, own.name, QUESTION)[:30])


if __name__ == "__main__":
    main()
