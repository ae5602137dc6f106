"""`/v1/uploads` as in OpenAI's API: a file in parts, each of which may be sent again.

The final request gives the order of the parts and makes them a file (`tenants.files.uploads`).
`tenants.files.intake` bounds bodies, and checks that the key may send them, before they get here.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest

from inference.errors import InvalidRequest
from tenants.api.endpoints.openai import files
from tenants.api.openai.views import body_of, keyed_by_method
from tenants.files import uploads as keeping
from tenants.models import ApiKey, Upload, UploadPart
from tenants.models.files import MAX_FILE_NAME


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    filename: str
    purpose: str
    bytes: int
    mime_type: str
    expires_after: files.Expiry | None = None


class _Ending(msgspec.Struct, forbid_unknown_fields=True):
    part_ids: list[str]
    md5: str | None = None


def shown(upload: Upload) -> dict[str, Any]:
    """The upload as clients see it."""
    file = None
    if upload.file_id is not None:
        file = upload.tenant.files.current().filter(pk=upload.file_id).first()
    return {
        "id": upload.pk,
        "object": "upload",
        "bytes": upload.size_bytes,
        "created_at": int(upload.created_at.timestamp()),
        "expires_at": int(upload.expires_at.timestamp()),
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.shown_status,
        "file": file and files.shown(file),
    }


def shown_part(part: UploadPart) -> dict[str, Any]:
    return {
        "id": part.pk,
        "object": "upload.part",
        "created_at": int(part.created_at.timestamp()),
        "upload_id": part.upload_id,
    }


def _begin(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    wanted = body_of(request, _Wanted)
    if not 0 < wanted.bytes <= settings.MAX_FILE_BYTES:
        message = f"`bytes` must be from 1 to {settings.MAX_FILE_BYTES}."
        raise InvalidRequest(message, param="bytes")
    if not 0 < len(wanted.filename) <= MAX_FILE_NAME or "\0" in wanted.filename:
        message = f"`filename` must have 1 to {MAX_FILE_NAME} characters and no null character."
        raise InvalidRequest(message, param="filename")
    purpose, expiry = files.purpose_of(wanted.purpose), wanted.expires_after
    upload = Upload(
        tenant=key.tenant,
        purpose=purpose,
        filename=wanted.filename,
        size_bytes=wanted.bytes,
        kept_seconds=files.usual_seconds(purpose)
        if expiry is None
        else files.kept_seconds(expiry.seconds, "expires_after.seconds"),
    )
    keeping.begin(upload)
    return shown(upload)


def _add(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    content, _ = files.form_of(request, "data", ())
    return shown_part(keeping.add(key.tenant, id, content))


def _complete(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    wanted = body_of(request, _Ending)
    return shown(keeping.complete(key.tenant, id, wanted.part_ids, wanted.md5))


def _cancel(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    return shown(keeping.cancel(key.tenant, id))


uploads = keyed_by_method(files.USERS, POST=_begin)
parts = keyed_by_method(files.USERS, POST=_add)
complete = keyed_by_method(files.USERS, POST=_complete)
cancel = keyed_by_method(files.USERS, POST=_cancel)
