"""A client that openapi-python-client generates (attrs and httpx)."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

NAME = "lorikeet_client"


def check(document: Path, answers: Iterable[dict[str, Any]], work: Path) -> None:
    """Generate the client and let it parse all answers; what it serializes must equal the answer.

    Raises:
        AssertionError: it cannot be generated, cannot parse an answer, or misreads one.
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
            assert same(plain(read.parsed), json.loads(answer["body"])), answer


def generate(document: Path, package: Path) -> None:
    """Write the client to `package`.

    Raises:
        AssertionError: the generator doesn't support all of the document.
    """
    import openapi_python_client
    from openapi_python_client.config import Config, ConfigFile, MetaType

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


def same(read: Any, sent: Any) -> bool:
    """Whether the client's serialization equals what it was sent. A time that it parsed may be
    formatted differently; one that it treats as text, as in a receipt, must be unchanged."""
    if isinstance(read, list) and isinstance(sent, list):
        return len(read) == len(sent) and all(map(same, read, sent))
    if isinstance(read, dict) and isinstance(sent, dict):
        return read.keys() == sent.keys() and all(same(read[name], sent[name]) for name in sent)
    return type(read) is type(sent) and (read == sent or _one_moment(read, sent))


def _one_moment(read: Any, sent: Any) -> bool:
    try:
        return datetime.fromisoformat(read) == datetime.fromisoformat(sent)
    except (TypeError, ValueError):
        return False


def plain(value: Any) -> Any:
    """A model, or a list of them, as JSON values."""
    if isinstance(value, list):
        return [plain(part) for part in value]
    return value.to_dict() if hasattr(value, "to_dict") else value
