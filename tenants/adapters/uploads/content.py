"""What is known about an upload once a child process has read it."""

from __future__ import annotations

from dataclasses import dataclass, field

COMMIT = "commit.ndjson"
"""The file name of an upload that is the commit of a push to the hub (`checks.commits`)."""

CONVERTED = "converted-"
"""What a file's name begins with that takes the place of one that was sent."""

MAX_RATIO = 200
"""Inflated size over stored size. Trained weights barely compress; half of an untrained adapter is
zeros."""
RATIO_FREE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class UploadContents:
    """The two files of an upload, as they are served.

    `size_bytes` includes the originals of files that were converted. `trained_on` is what the
    configuration names as its base model; empty if it names none or can't be read (`config_fault`:
    why). `converted` has a sentence for each change, by file; `left_out` names what was sent and
    not read.
    """

    config_sha256: str
    weights_sha256: str
    size_bytes: int
    trained_on: str
    config_fault: str = ""
    converted: dict[str, list[str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
