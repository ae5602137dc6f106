"""Storages of a test's own: what is stored, and what is left in the folder of temporary files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.files.base import ContentFile
from django.core.files.storage import storages

from tenants.adapters.uploads import parts
from tenants.files import blobs
from tenants.models import UploadChunk, UploadSession

FOLDERS = "django.core.files.storage.FileSystemStorage"
MEMORY = "django.core.files.storage.InMemoryStorage"


def store_in(settings: Any, folder: Path, **backends: str) -> None:
    """Store everything below the folder, except where another backend is named for a place."""
    settings.STORAGES = settings.STORAGES | {
        place: _configured(backends.get(place, FOLDERS), folder / place)
        for place in ("adapters", "files", parts.PLACE)
    }
    settings.FILE_UPLOAD_TEMP_DIR = str(folder / "scratch")
    (folder / "scratch").mkdir(exist_ok=True)


def make_bytes(id: str, data: bytes) -> None:
    """The bytes of the file with this id."""
    with blobs.made(id) as file:
        file.write(data)


def make_chunk(session: UploadSession, data: bytes) -> None:
    """The first bytes of an upload's only file."""
    chunk = UploadChunk(upload=session, offset=0, size_bytes=len(data))
    storages[parts.PLACE].save(chunk.pk, ContentFile(data))
    chunk.save()


def _configured(backend: str, folder: Path) -> dict[str, Any]:
    options = {} if backend == MEMORY else {"location": str(folder), "allow_overwrite": True}
    return {"BACKEND": backend, "OPTIONS": options}


def stored_files(storage: Any, folder: str = "") -> list[str]:
    """The paths of all files in the storage."""
    try:
        folders, files = storage.listdir(folder)
    except FileNotFoundError:
        return []
    found = [f"{folder}/{name}".lstrip("/") for name in files]
    for name in folders:
        found += stored_files(storage, f"{folder}/{name}".lstrip("/"))
    return sorted(found)


def left_of_uploads(settings: Any) -> list[str]:
    """What is left of uploads. A worker removes it last, after an upload's answer."""
    scratch = Path(settings.FILE_UPLOAD_TEMP_DIR)
    names = [one.name for one in scratch.iterdir()] if scratch.exists() else []
    return [*names, *stored_files(storages[parts.PLACE])]
