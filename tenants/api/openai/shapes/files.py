"""Files and their uploads in parts."""

from __future__ import annotations

from typing import Literal

from tenants.api.openai.shapes.base import Listed, Shape


class File(Shape):
    """A file; its content is at `/v1/files/{id}/content`."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "fine-tune", "evals", "user_data", "batch_output"]
    status: Literal["processed"]


class DeletedFile(Shape):
    id: str
    object: Literal["file"]
    deleted: bool


class UploadRequest(Shape):
    """A file that is to be uploaded in parts."""

    filename: str
    purpose: Literal["batch", "fine-tune", "evals", "user_data"]
    bytes: int
    mime_type: str
    expires_after: OutputExpiry | None = None


class UploadEnding(Shape):
    """The parts of the file, in order."""

    part_ids: list[str]
    md5: str | None = None


class FileUpload(Shape):
    """An upload, which has a `file` after it is complete."""

    id: str
    object: Literal["upload"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: File | None


class UploadPart(Shape):
    id: str
    object: Literal["upload.part"]
    created_at: int
    upload_id: str


class Files(Listed, kw_only=True):
    data: list[File]


class OutputExpiry(Shape):
    anchor: Literal["created_at"]
    seconds: int
