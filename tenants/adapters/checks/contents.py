"""The two files of an adapter, from an archive or sent as they are, with their hashes.

No file is in memory whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from os import SEEK_END
from typing import IO

from inference.content import CONFIG, FILES, WEIGHTS
from tenants.adapters.checks import archives, shards
from tenants.adapters.checks.archives import ArchiveMember
from tenants.adapters.checks.config import MAX_CONFIG_BYTES
from tenants.adapters.checks.conversion import convert
from tenants.adapters.checks.streams import COPY_BYTES
from tenants.adapters.checks.strict_json import BadJson, load_object
from tenants.adapters.uploads.content import UploadContents
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused, too_large
from tenants.adapters.uploads.selection import select

_PICKLE = re.compile(rb"PK\x03\x04|\x80[\x02-\x05].{6}[^{]", re.DOTALL)
"""A torch file is a zip or a bare pickle. A safetensors file may begin with any byte (of its
header's length), but has an opening brace at the ninth."""


def unpack(
    archive: IO[bytes], max_bytes: int, targets: Mapping[str, IO[bytes]], scratch: IO[bytes]
) -> list[str]:
    """Write an archive's adapter to `targets`, which has a file for each of
    `inference.content.FILES`; `scratch` is another empty one. Shards are put together.

    Returns the names of what was left out.

    Raises:
        UploadRefused: see `archives`, `select` and `shards`, or the adapter is over `max_bytes`.
    """
    with archives.open_archive(archive, scratch) as members:
        selection = select(member.path for member in members)
        by_path = {member.path: member for member in members}
        config, weights = by_path[selection.config], [by_path[path] for path in selection.weights]
        if config.size + sum(member.size for member in weights) > max_bytes:
            raise too_large(max_bytes)
        _copy(config, targets[CONFIG])
        if len(weights) == 1:
            _copy(weights[0], targets[WEIGHTS])
        else:
            shards.join(weights, targets[WEIGHTS])
    return selection.left_out_names()


def _copy(member: ArchiveMember, target: IO[bytes]) -> None:
    for chunk in _chunks(member.open()):
        target.write(chunk)


def read(
    files: Mapping[str, IO[bytes]], converted: Mapping[str, IO[bytes]], oid: str
) -> UploadContents:
    """Convert the two files, hash what is to be served, and read the base model's name.

    `converted` has an empty file for each of the two (`conversion.convert`); `oid` is the SHA-256
    that the weights were announced with, or empty.

    Raises:
        UploadRefused: the weights are not those that were announced, or a pickle, a Git LFS pointer
            or a web page.
    """
    sent = digested(files[WEIGHTS]) if oid else None
    if sent and sent[0] != oid:
        message = f"The content of {WEIGHTS} does not match its SHA-256. Push it again."
        raise UploadRefused(UploadRefusal.OBJECT_DIFFERS, message)
    _refuse_pickle(files[WEIGHTS])
    _refuse_others(files[WEIGHTS])
    changes = convert(files[CONFIG], files[WEIGHTS], converted[CONFIG], converted[WEIGHTS])
    served = {name: converted[name] if name in changes else files[name] for name in FILES}
    config_sha256, config_bytes = digested(served[CONFIG])
    unchanged = sent if WEIGHTS not in changes else None
    weights_sha256, weights_bytes = unchanged or digested(served[WEIGHTS])
    originals = sum(files[name].seek(0, SEEK_END) for name in changes)
    size = config_bytes + weights_bytes + originals
    trained_on, fault = _trained_on(served[CONFIG])
    return UploadContents(config_sha256, weights_sha256, size, trained_on, fault, changes)


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


def _refuse_others(weights: IO[bytes]) -> None:
    """Refuse what people send in place of weights by mistake, by what it is."""
    weights.seek(0)
    head = weights.read(64).lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        fault = (
            "is a Git LFS pointer, not the weights: run `git lfs pull` in the repository that it is"
            " from, and send the file again."
        )
    elif head.startswith((b"<!doctype", b"<html", b"<?xml")):
        fault = "is a web page, not the weights: the download needed another address or a sign-in."
    else:
        return
    raise UploadRefused(UploadRefusal.WEIGHTS_NOT_SAFETENSORS, f"{WEIGHTS} {fault}")


def _trained_on(config: IO[bytes]) -> tuple[str, str]:
    """The base model's name, and why the configuration can't be read."""
    config.seek(0)
    try:
        fields = load_object(config.read(MAX_CONFIG_BYTES))
    except BadJson as error:
        return "", f"{CONFIG} is not a valid JSON object: {error}."
    named = fields.get("base_model_name_or_path")
    if not isinstance(named, str):
        return "", ""
    # PostgreSQL's text can hold neither lone surrogates nor NUL.
    text = named.encode("utf-8", "replace").decode()
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")[:255], ""
