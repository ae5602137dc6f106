"""A client with the types that openapi-typescript generates, and openapi-fetch.

`make clients` installs both with `npm ci`, as locked in package-lock.json.
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
    """Why the client cannot be generated on this machine; empty if it can."""
    if shutil.which("node") is None:
        return "there is no node"
    return "" if TOOLS.is_dir() else f"run `npm ci` in {HERE}"


def check(document: Path, answers: list[dict[str, Any]], work: Path) -> None:
    """Generate the client and let it parse all answers, which must have their generated types.

    Raises:
        subprocess.CalledProcessError: an answer cannot be parsed, or is of another type.
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
    """A program that type-checks if the answers have the right types. Each answer is a literal,
    because a field that its type lacks is an error there."""
    yield 'import type { paths } from "./client";'
    for number, answer in enumerate(answers):
        if answer["media_type"].endswith("json"):
            keys = (answer["path"], answer["method"], "responses")
            of = "".join(f"[{json.dumps(key)}]" for key in keys)
            of += f'[{answer["status"]}]["content"]["{answer["media_type"]}"]'
            yield f"export const answer{number}: paths{of} = {answer['body']};"
