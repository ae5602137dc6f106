"""Where adapter files lie: any Django storage, one folder for each upload that was kept.

A folder is never written to again, so whoever reads from it needs no lock; two uploads of the same
content have two folders, and the one that came second removes its own.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from uuid import uuid4

from inference.content import CONFIG, FILES, WEIGHTS, digest_of
from tenants.adapters.checks import static
from tenants.adapters.checks.static import Verdict
from tenants.adapters.checks.target_modules import TargetModules
from tenants.adapters.storage import open_file, size, storage
from tenants.adapters.uploads.receiving import COPY_BYTES, Upload
from tenants.models import Adapter, AdapterVersion, BaseModel


class StoredFileDamaged(Exception):
    """A stored file is no longer what was uploaded."""


def new_folder(adapter: Adapter, digest: str) -> str:
    """A folder name that nobody else gets; readable for whoever looks into the storage."""
    return f"{adapter.tenant.slug}/{adapter.name}/{digest[:16]}-{uuid4().hex[:16]}"


def save(folder: str, upload: Upload) -> None:
    """Keep the two files. A local storage moves them, another copies them in chunks."""
    try:
        for name, file in upload.files():
            storage().save(f"{folder}/{name}", file)
    except BaseException:
        remove(folder)
        raise


def remove(folder: str) -> None:
    """Delete the folder's files; no error if they are gone."""
    if folder:
        for name in FILES:
            storage().delete(f"{folder}/{name}")
        storage().delete(folder)


def sha256(folder: str, name: str) -> str:
    """The file's SHA-256 (hex), read in chunks."""
    found = hashlib.sha256()
    with closing(open_file(folder, name)) as file:
        for chunk in file.chunks(COPY_BYTES):
            found.update(chunk)
    return found.hexdigest()


def target_modules_of(base_model: BaseModel) -> TargetModules:
    return TargetModules(base_model.modules, base_model.max_lora_rank)


def check(version: AdapterVersion) -> Verdict:
    """The static validation of the stored files.

    Raises:
        StoredFileDamaged: they are not what was uploaded, which is no fault of the adapter's.
        OSError: they cannot be read.
    """
    folder = version.folder
    if digest_of(sha256(folder, CONFIG), sha256(folder, WEIGHTS)) != version.digest:
        raise StoredFileDamaged(f"{version} in {folder} is not what was uploaded")
    with closing(open_file(folder, CONFIG)) as config, closing(open_file(folder, WEIGHTS)) as rest:
        return static.check(
            config, rest, size(folder, WEIGHTS), target_modules_of(version.adapter.base_model)
        )
