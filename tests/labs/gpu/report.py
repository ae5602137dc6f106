"""The report of the steps, as Markdown."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from tests.labs.gpu.steps import ROW
from tests.labs.gpu.subjects import CUDA

INTRODUCTION = (
    "`make gpu-check` writes this page: a script that runs vLLM on the agent's own path on a "
    "machine with an NVIDIA GPU, in at most 15 minutes. Each step has its own time limit, and runs "
    "whether or not the others succeed (`tests/labs/gpu/`)."
)
ON_CPU = (
    "**Nothing has run on a GPU yet.** No such machine was at hand. These figures are of the same "
    "script on a CPU with tiny sizes. They show that its steps work, and nothing about a GPU."
)
ON_GPU = "All steps ran on the GPU that the first one names; failures are below."
STEPS = {
    "machine": "The machine",
    "parity": "Parity with transformers and PEFT in float32",
    "hazards": "Hazards",
    "moves": "Moves",
    "speed": "Speed through the agent's engine, with 0, 1, 8 and 64 adapters of rank 16",
}


@dataclass(slots=True)
class StepReport:
    """What a step found, as names and values; `fault` says why it failed."""

    name: str
    fault: str = ""
    rows: list[tuple[str, str]] = field(default_factory=list)
    took_s: float = 0.0

    @classmethod
    def of(cls, name: str, fault: str, output: str, took_s: float) -> Self:
        """From what it printed."""
        rows = [
            json.loads(line.removeprefix(ROW))
            for line in output.splitlines()
            if line.startswith(ROW)
        ]
        return cls(name, fault, [(what, value) for what, value in rows], took_s)

    @property
    def result(self) -> str:
        if self.fault:
            return f"FAILED: {self.fault}"
        return "skipped" if dict(self.rows).get("skipped") else "done"


def written(steps: Sequence[StepReport], device: str) -> str:
    """The whole file."""
    parts = [
        "# On a GPU",
        INTRODUCTION,
        ON_GPU if device == CUDA else ON_CPU,
        f"Written {datetime.now(UTC):%Y-%m-%d}, `--device {device}`, on {os.cpu_count()} cores "
        f"with a load of {os.getloadavg()[2]:.0f} over the last 15 minutes.",
        _table(
            ["step", "result", "took"],
            [(one.name, one.result, f"{one.took_s:.0f} s") for one in steps],
        ),
        *(_section(one) for one in steps if one.rows),
    ]
    return "\n\n".join(parts) + "\n"


def _section(step: StepReport) -> str:
    title = STEPS.get(step.name) or step.name.replace("profile:", "Profile ")
    return f"## {title}\n\n{_table(['what', 'found'], step.rows)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
