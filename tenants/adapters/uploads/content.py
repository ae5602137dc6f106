"""What is known about an upload once a child process has read it."""

from __future__ import annotations

from dataclasses import dataclass, field

COMMIT = "commit.ndjson"
"""The file name of an upload that is the commit of a push to the hub (`checks.commits`)."""

MAX_RATIO = 200
"""Inflated size over stored size. Trained weights barely compress; half of an untrained adapter is
zeros."""
RATIO_FREE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class UploadContents:
    """The two files of an upload.

    `trained_on` is what the configuration names as its base model; empty if it names none or can't
    be read (`config_fault`: why). `left_out` names what was sent and not read.
    """

    config_sha256: str
    weights_sha256: str
    size_bytes: int
    trained_on: str
    config_fault: str = ""
    left_out: list[str] = field(default_factory=list)
