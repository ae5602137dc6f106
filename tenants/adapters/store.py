"""Stores adapter files in any Django storage, one folder for each upload that was kept.

A folder is never written to again, so readers need no lock. Two uploads of the same content have
two folders; the later one removes its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from django.core.files import File

from inference.content import FILES, digest_of
from tenants.adapters import sandbox
from tenants.adapters.checks.findings import Code, Finding
from tenants.adapters.checks.target_modules import TargetModules
from tenants.adapters.storage import ORIGINALS, open_file, storage
from tenants.models import Adapter, AdapterVersion, BaseModel


class StoredFileDamaged(Exception):
    """A stored file is no longer what was uploaded."""


def new_folder(adapter: Adapter, digest: str) -> str:
    """A unique folder name that people who look into the storage can read."""
    return f"{adapter.tenant.slug}/{adapter.name}/{digest[:16]}-{uuid4().hex[:16]}"


def save(folder: str, files: Iterable[tuple[str, File[bytes]]]) -> None:
    """Store the files. A local storage moves them, others copy them in chunks."""
    try:
        for name, file in files:
            storage().save(f"{folder}/{name}", file)
    except BaseException:
        remove(folder)
        raise


def remove(folder: str) -> None:
    """Delete the folder's files; no error if they are gone."""
    if folder:
        for home in (f"{folder}/{ORIGINALS}", folder):
            for name in FILES:
                storage().delete(f"{home}/{name}")
            storage().delete(home)


def remove_all(folder: str) -> None:
    """Delete all files below the folder, such as a tenant's slug; no error if there are none."""
    try:
        folders, files = storage().listdir(folder)
    except FileNotFoundError:
        return
    for name in folders:
        remove_all(f"{folder}/{name}")
    for name in files:
        storage().delete(f"{folder}/{name}")
    storage().delete(folder)


def target_modules_of(base_model: BaseModel) -> TargetModules:
    return TargetModules(base_model.modules, base_model.max_lora_rank)


@dataclass(frozen=True, slots=True)
class StoreVerdict:
    """What the static checks found, for the version's `report`, and its checked configuration."""

    report: dict[str, Any]
    config: dict[str, Any]

    @property
    def accepted(self) -> bool:
        return not self.report["findings"]

    @classmethod
    def failed(cls, code: Code, message: str) -> StoreVerdict:
        """The verdict on files that could not be checked."""
        finding = Finding(code, message).as_json()
        return cls({"findings": [finding], "findings_omitted": 0}, {})


def check(version: AdapterVersion) -> StoreVerdict:
    """The static validation of the stored files, in a child process.

    Raises:
        StoredFileDamaged: they differ from what was uploaded; the adapter is not at fault.
        OSError: they cannot be read.
    """
    targets = target_modules_of(version.adapter.base_model)
    task = {
        "task": "check",
        "modules": dict(targets.modules),
        "max_lora_rank": targets.max_lora_rank,
    }
    limits = sandbox.SandboxLimits.for_bytes(version.size_bytes)
    try:
        with ExitStack() as opened:
            files = {
                name: (opened.enter_context(open_file(version.folder, name)), "rb")
                for name in FILES
            }
            found = sandbox.run(task, files, limits)
    except sandbox.LimitExceeded as error:
        message = f"Checking the adapter exceeded a resource limit ({error})."
        return StoreVerdict.failed(Code.CHECK_LIMIT_EXCEEDED, message)
    except sandbox.Crashed:
        return StoreVerdict.failed(
            Code.CHECKS_FAILED,
            "The adapter could not be checked: the process that read it crashed.",
        )
    if digest_of(found["config_sha256"], found["weights_sha256"]) != version.digest:
        raise StoredFileDamaged(f"{version} in {version.folder} is not what was uploaded")
    return StoreVerdict(found["report"], found["config"])
