"""The digest of what determines a base model's answers: its weights, tokenizer and chat template,
and the options of its engine that change answers.

The same files give the same digest on every host, wherever they are. Configuration, tokenizer and
template are read whole, and so are weights of up to `WHOLE_BYTES`. Of larger files the size, the
first `HEAD_BYTES` (in which a safetensors file has its header, with the name, type and shape of
every tensor) and `BLOCKS` evenly spaced blocks are read: two trainings of one model differ in all
of them, and an engine with hundreds of gigabytes starts without reading them twice. Deliberate
changes of single weights are not detected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

WHOLE_BYTES = 64 << 20
HEAD_BYTES = 1 << 20
BLOCKS = 64
BLOCK_BYTES = 64 << 10
READ_BYTES = 1 << 20

DESCRIPTIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken.json",
    "*.model",
    "*.tiktoken",
    "chat_template.json",
    "chat_template.jinja",
)
"""Configuration, tokenizer and chat template, as Hugging Face's libraries write them."""
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
"""Formats of weights. Engines load only files of the first format present, so no other counts."""


def revision_of(
    model: Path,
    tokenizer: Path,
    chat_template: Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """SHA-256 (hex) over these folders, the template that is used instead of their own, and engine
    options, if there are any (`EngineProfile.changing`).

    Blocks while it reads: up to 64 MiB of each file.

    Raises:
        OSError: a file cannot be read.
    """
    found = hashlib.sha256()
    for folder in dict.fromkeys((model, tokenizer)):
        for path in _files(folder, DESCRIPTIONS):
            _add(found, path.name, _whole(path))
    for path in _weights(model):
        small = path.stat().st_size <= WHOLE_BYTES
        _add(found, path.name, _whole(path) if small else _sampled(path))
    if chat_template is not None:
        _add(found, "--chat-template", _whole(chat_template))
    if options:
        text = json.dumps(options, sort_keys=True, default=str)
        _add(found, "--options", iter([text.encode()]))
    return found.hexdigest()


def _weights(folder: Path) -> list[Path]:
    return next((found for pattern in WEIGHTS if (found := _files(folder, [pattern]))), [])


def _files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(found, key=lambda path: path.name)


def _add(found: hashlib._Hash, name: str, parts: Iterator[bytes]) -> None:
    content = hashlib.sha256()
    for part in parts:
        content.update(part)
    found.update(f"{name}\0{content.hexdigest()}\n".encode())


def _whole(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(READ_BYTES):
            yield part


def _sampled(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield str(size).encode()
    with path.open("rb") as file:
        yield file.read(HEAD_BYTES)
        for number in range(BLOCKS):
            file.seek((size - BLOCK_BYTES) * number // (BLOCKS - 1))
            yield file.read(BLOCK_BYTES)
