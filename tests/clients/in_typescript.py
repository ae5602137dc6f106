"""A client of types that openapi-typescript generates, with openapi-fetch.

They are installed by `npm ci` as package-lock.json says, which `make clients` does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOOLS = HERE / "node_modules" / ".bin"


def missing() -> str:
    """What keeps it from being generated here; empty if nothing does."""
    if shutil.which("node") is None:
        return "there is no node"
    return "" if TOOLS.is_dir() else f"run `npm ci` in {HERE}"


def check(document: Path, answers: list[dict[str, Any]], work: Path) -> None:
    """Generate it and have it read all answers; each has the type that is generated for it.

    Raises:
        subprocess.CalledProcessError: one cannot be read, or is of another type.
    """
    folder = work / "typescript"
    folder.mkdir()
    (folder / "answers.json").write_text(json.dumps(answers))
    (folder / "answers.ts").write_text("\n".join(lines(answers)))
    commands: list[list[str | Path]] = [
        [TOOLS / "openapi-typescript", document, "--output", "client.d.ts"],
        [TOOLS / "tsc", "--noEmit", "--strict", "--skipLibCheck", "false", "answers.ts"],
        ["node", HERE / "read.mjs", folder / "answers.json"],
    ]
    for command in commands:
        subprocess.run(command, cwd=folder, check=True)


def lines(answers: list[dict[str, Any]]) -> Iterator[str]:
    """A program that is of the right types if the answers are. Each is a literal, in which a field
    that the type has not is an error."""
    yield 'import type { paths } from "./client";'
    for number, answer in enumerate(answers):
        if answer["media_type"].endswith("json"):
            keys = (answer["path"], answer["method"], "responses")
            of = "".join(f"[{json.dumps(key)}]" for key in keys)
            of += f'[{answer["status"]}]["content"]["{answer["media_type"]}"]'
            yield f"export const answer{number}: paths{of} = {answer['body']};"
