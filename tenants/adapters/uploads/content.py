"""What an upload may consist of, and what is known about it once a child process has read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inference.content import CONFIG, FILES, WEIGHTS
from tenants.adapters.checks.findings import shown
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused

PICKLE_NAMES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
COMPRESSED_TAR_NAMES = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")
COMMIT = "commit.ndjson"
"""The file name of an upload that is the commit of a push to the hub (`checks.commits`)."""

MAX_RATIO = 200
"""Inflated size over stored size. Trained weights barely compress; half of an untrained adapter is
zeros."""
RATIO_FREE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class UploadContents:
    """The two files of an upload.

    `trained_on` is what the configuration names as its base model; empty where it cannot be read.
    """

    config_sha256: str
    weights_sha256: str
    size_bytes: int
    trained_on: str


def is_archive_name(name: str) -> bool:
    return name.lower().endswith((".tar", ".zip"))


def named(names: Iterable[str]) -> list[str]:
    """The names unchanged, if they are exactly those of an adapter's two files.

    Raises:
        UploadRefused: a file is missing, there twice, or not wanted.
    """
    found: list[str] = []
    for name in names:
        _refuse_name(name)
        if name in found:
            raise UploadRefused(UploadRefusal.FILE_DUPLICATE, f"{name} is included twice.")
        found.append(name)
    for name in FILES:
        if name not in found:
            raise UploadRefused(
                UploadRefusal.FILE_MISSING, f"{name} is missing: send {CONFIG} and {WEIGHTS}."
            )
    return found


def _refuse_name(name: str) -> None:
    lower = name.lower()
    if name in FILES:
        return
    if lower.endswith(PICKLE_NAMES):
        raise UploadRefused(
            UploadRefusal.PICKLE_REFUSED,
            f"{shown(name)} can run code when it is loaded. Save the adapter as safetensors.",
        )
    if lower.endswith(COMPRESSED_TAR_NAMES):
        raise UploadRefused(
            UploadRefusal.ARCHIVE_UNSUPPORTED,
            f"{shown(name)} must be an uncompressed .tar or a .zip.",
        )
    raise UploadRefused(
        UploadRefusal.FILE_UNEXPECTED,
        f"{shown(name)} is not a file of an adapter: send {CONFIG} and {WEIGHTS}, or one "
        ".tar or .zip of them.",
    )
