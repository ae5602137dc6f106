"""The digest that identifies an adapter version by its content."""

from __future__ import annotations

import hashlib

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
FILES = (CONFIG, WEIGHTS)
"""The files of an adapter version: these two and no others."""
TICKET_HEADER = "x-adapter-ticket"
"""The header with which an engine proves to a gateway that it may fetch the files
(`AdapterRef.ticket`)."""


def digest_of(config_sha256: str, weights_sha256: str) -> str:
    """The digest of a version: SHA-256 (hex) over one `<sha256>  <file>` line per file."""
    lines = f"{config_sha256}  {CONFIG}\n{weights_sha256}  {WEIGHTS}\n"
    return hashlib.sha256(lines.encode()).hexdigest()
