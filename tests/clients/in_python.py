"""A client that openapi-python-client generates (attrs and httpx).

The generator runs in an environment of its own: it wants an older typer than vLLM.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

GENERATOR = "openapi-python-client==0.29.1"


def check(document: Path, answers: list[dict[str, Any]], work: Path) -> None:
    """Generate it and have it read all answers; what it read, written again, is the answer.

    Raises:
        AssertionError: it cannot read one, or reads another thing.
    """
    package = generate(document, work)
    sys.path.insert(0, str(work))
    modules = operations(work / package)
    client = importlib.import_module(package).Client("http://localhost")
    for answer in answers:
        module = importlib.import_module(modules[answer["operation"]])
        response = httpx.Response(
            answer["status"],
            content=answer["body"].encode(),
            headers={"content-type": answer["media_type"]},
        )
        read = module._build_response(client=client, response=response)
        if answer["media_type"].endswith("json"):
            assert plain(read.parsed) == json.loads(answer["body"]), (answer, read.parsed)


def generate(document: Path, work: Path) -> str:
    """The name of the package, which lies in `work`."""
    config = work / "generator.json"
    config.write_text(json.dumps({"post_hooks": [], "package_name_override": "lorikeet_client"}))
    command = [sys.executable, "-m", "uv", "tool", "run", "--from", GENERATOR]
    command += ["openapi-python-client", "generate", "--meta", "none", "--fail-on-warning"]
    target = work / "lorikeet_client"
    subprocess.run(
        [*command, "--path", str(document), "--config", str(config), "--output-path", str(target)],
        check=True,
    )
    return target.name


def operations(package: Path) -> dict[str, str]:
    """The module of each operation."""
    return {
        file.stem: f"{package.name}.api.{file.parent.name}.{file.stem}"
        for file in package.glob("api/*/*.py")
        if file.stem != "__init__"
    }


def plain(value: Any) -> Any:
    """What a model is as JSON."""
    if isinstance(value, list):
        return [plain(part) for part in value]
    return value.to_dict() if hasattr(value, "to_dict") else value
