"""A client that openapi-python-client generates (attrs and httpx)."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import openapi_python_client
from openapi_python_client.config import Config, ConfigFile, MetaType

NAME = "lorikeet_client"


def check(document: Path, answers: Iterable[dict[str, Any]], work: Path) -> None:
    """Generate it and have it read all answers; what it read, written again, is the answer.

    Raises:
        AssertionError: it cannot be generated, cannot read an answer, or reads another thing.
    """
    generate(document, work / NAME)
    sys.path.insert(0, str(work))
    client = importlib.import_module(NAME).Client("http://localhost")
    modules = operations(work / NAME)
    for answer in answers:
        module = importlib.import_module(modules[answer["operation"]])
        response = httpx.Response(
            answer["status"],
            content=answer["body"].encode(),
            headers={"content-type": answer["media_type"]},
        )
        try:
            read = module._build_response(client=client, response=response)
        except Exception as error:
            raise AssertionError(answer) from error
        if answer["media_type"].endswith("json"):
            assert plain(read.parsed) == as_written(json.loads(answer["body"])), answer


def generate(document: Path, package: Path) -> None:
    """Write the client.

    Raises:
        AssertionError: the generator doesn't understand all of the document.
    """
    options = ConfigFile(
        post_hooks=[],
        package_name_override=package.name,
        content_type_overrides={"application/offset+octet-stream": "application/octet-stream"},
    )
    config = Config.from_sources(
        options,
        MetaType.NONE,
        document,
        file_encoding="utf-8",
        overwrite=False,
        output_path=package,
    )
    faults = openapi_python_client.generate(config=config)
    assert not faults, "\n".join(f"{fault.header} {fault.detail}" for fault in faults)


def operations(package: Path) -> dict[str, str]:
    """The module of each operation."""
    return {
        file.stem: f"{package.name}.api.{file.parent.name}.{file.stem}"
        for file in package.glob("api/*/*.py")
        if file.stem != "__init__"
    }


UTC = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)Z")


def as_written(value: Any) -> Any:
    """An answer as the client writes it: it has another name for UTC."""
    if isinstance(value, list):
        return [as_written(part) for part in value]
    if isinstance(value, dict):
        return {name: as_written(part) for name, part in value.items()}
    if isinstance(value, str) and (moment := UTC.fullmatch(value)):
        return f"{moment[1]}+00:00"
    return value


def plain(value: Any) -> Any:
    """What a model is as JSON."""
    if isinstance(value, list):
        return [plain(part) for part in value]
    return value.to_dict() if hasattr(value, "to_dict") else value
