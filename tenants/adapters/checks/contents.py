"""The two files of an upload, from an archive or sent as they are, with their hashes.

No file is in memory whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import IO

from inference.content import CONFIG, WEIGHTS
from tenants.adapters.checks import archives
from tenants.adapters.checks.config import MAX_CONFIG_BYTES
from tenants.adapters.checks.strict_json import BadJson, load_object
from tenants.adapters.uploads.content import UploadContents, named
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused, too_large

COPY_BYTES = 256 << 10
_PICKLE = re.compile(rb"PK\x03\x04|\x80[\x02-\x05].{6}[^{]", re.DOTALL)
"""A torch file is a zip or a bare pickle. A safetensors file may begin with any byte (of its
header's length), but has an opening brace at the ninth."""


def unpack(
    archive: IO[bytes], name: str, max_bytes: int, targets: Mapping[str, IO[bytes]]
) -> UploadContents:
    """Write the two files of an archive (a zip if `name` ends so, else a tar) to `targets`.

    `targets` has a file, open for reading and writing, for each of `inference.content.FILES`.

    Raises:
        UploadRefused: see `archives` and `named`, or together the files are over `max_bytes`.
    """
    opened = archives.open_zip if name.lower().endswith(".zip") else archives.open_tar
    with opened(archive) as members:
        named(member.file_name for member in members)
        if sum(member.size for member in members) > max_bytes:
            raise too_large(max_bytes)
        for member in members:
            for chunk in _chunks(member.read):
                targets[member.file_name].write(chunk)
    for target in targets.values():
        target.flush()
    return read(targets[CONFIG], targets[WEIGHTS])


def read(config: IO[bytes], weights: IO[bytes]) -> UploadContents:
    """Hash the two files and read the base model's name.

    Raises:
        UploadRefused: the weights are a pickle.
    """
    _refuse_pickle(weights)
    config_sha256, config_bytes = digested(config)
    weights_sha256, weights_bytes = digested(weights)
    trained_on = _trained_on(config)
    return UploadContents(config_sha256, weights_sha256, config_bytes + weights_bytes, trained_on)


def digested(file: IO[bytes]) -> tuple[str, int]:
    """The file's SHA-256 (hex) and its length in bytes; the file is rewound to its start."""
    found, size = hashlib.sha256(), 0
    file.seek(0)
    for chunk in _chunks(file.read):
        found.update(chunk)
        size += len(chunk)
    file.seek(0)
    return found.hexdigest(), size


def _chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while chunk := read(COPY_BYTES):
        yield chunk


def _refuse_pickle(weights: IO[bytes]) -> None:
    """Refuse a file whose first bytes are those of a pickle or torch file, whatever its name."""
    weights.seek(0)
    if _PICKLE.match(weights.read(9)):
        raise UploadRefused(
            UploadRefusal.PICKLE_REFUSED, f"{WEIGHTS} is a pickle or PyTorch file, not safetensors."
        )


def _trained_on(config: IO[bytes]) -> str:
    config.seek(0)
    try:
        fields = load_object(config.read(MAX_CONFIG_BYTES))
    except BadJson:
        return ""
    named = fields.get("base_model_name_or_path")
    if not isinstance(named, str):
        return ""
    # PostgreSQL's text can hold neither lone surrogates nor NUL.
    text = named.encode("utf-8", "replace").decode()
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")[:255]
