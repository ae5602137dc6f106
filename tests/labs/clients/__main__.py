"""`make clients`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tests.environment  # noqa: F401  the settings need secrets and a database
from gateway.start import ROOT
from tests.labs.clients import in_python, in_typescript

RECORDED = ["tests/tenants/api", "tests/adapters/uploads", "tests/inference/gateway"]


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        answers = read(Path(arguments[0]) if arguments else record(work / "answers"))
        document = described(work / "openapi.json")
        in_python.check(document, answers, work)
        print(f"The generated Python client read {len(answers)} answers.")
        if reason := in_typescript.missing():
            print(f"No TypeScript client: {reason}.")
        else:
            in_typescript.check(document, answers, work)
            print(f"The generated TypeScript client read {len(answers)} answers.")
    return 0


def record(folder: Path) -> Path:
    """Run tests that record their answers in the folder, and return it."""
    environment = os.environ | {"RECORD_ANSWERS": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *RECORDED]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    return folder


def read(folder: Path) -> list[dict[str, str]]:
    """The recorded answers, each once, in a stable order.

    Raises:
        SystemExit: there are none.
    """
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    if not found:
        raise SystemExit(f"There are no answers in {folder}.")
    return found


def described(file: Path) -> Path:
    """Write the OpenAPI document, as the console serves it, to `file`, and return it."""
    command = [sys.executable, "manage.py", "spectacular", "--format", "openapi-json"]
    subprocess.run([*command, "--file", str(file)], cwd=ROOT, check=True)
    return file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
