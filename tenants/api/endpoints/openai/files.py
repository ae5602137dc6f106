"""`/v1/files` as in OpenAI's API, for a tenant's keys: upload, list, read and delete files.

`tenants.files.intake` bounds bodies, and checks that the key may send them, before they get here. A
file's content is not examined until it is used.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import msgspec
from django.core.exceptions import BadRequest
from django.core.files.uploadedfile import TemporaryUploadedFile
from django.http import HttpRequest, StreamingHttpResponse
from django.http.multipartparser import MultiPartParserError
from django.utils.datastructures import MultiValueDict

from inference.errors import InvalidRequest, NotFound
from tenants.api.openai import listing
from tenants.api.openai.views import Query, keyed, keyed_by_method
from tenants.files import blobs, keeping
from tenants.files.content import answer_with
from tenants.models import ApiKey, Purpose, StoredFile
from tenants.permissions import TABLE, Permission

USERS = TABLE[Permission.USE_FILES][1]
MAX_PAGE = 10_000
PURPOSES = [one.value for one in Purpose if one is not Purpose.BATCH_OUTPUT]
LEAST_S, MOST_S = 3600, 30 * 86_400
"""Bounds of the lifetime of a file that expires, in seconds, as in OpenAI's API."""


class Expiry(msgspec.Struct, forbid_unknown_fields=True):
    """The time after which something is to be deleted, in JSON bodies."""

    anchor: Literal["created_at"]
    seconds: int


FIELDS = {"purpose", "expires_after[anchor]", "expires_after[seconds]"}


def shown(file: StoredFile) -> dict[str, Any]:
    """The file as clients see it."""
    return {
        "id": file.pk,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": int(file.created_at.timestamp()),
        "expires_at": None if file.expires_at is None else int(file.expires_at.timestamp()),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def found(key: ApiKey, id: str) -> StoredFile:
    """The file of the key's tenant with this id.

    Raises:
        NotFound: there is none, or it has expired.
    """
    file = key.tenant.files.current().filter(pk=id).first() if blobs.ID.fullmatch(id) else None
    if file is None:
        raise NotFound(f"No such file: {id[:64]}.")
    return file


def _list(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    query = Query(request.GET, [*listing.PARAMETERS, "purpose"])
    some = key.tenant.files.current()
    if purposes := query.choices("purpose", [*Purpose]):
        some = some.filter(purpose__in=purposes)
    return listing.page(some, query, shown, most=MAX_PAGE)


def _create(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    upload, fields = form_of(request, "file", FIELDS)
    file = StoredFile(
        tenant=key.tenant,
        purpose=purpose_of(fields.get("purpose", "")),
        filename=upload.name or "file",
        size_bytes=upload.size or 0,
        expires_at=keeping.expiry(_kept_s(fields)),
    )
    keeping.keep(file, upload)
    return shown(file)


def purpose_of(text: str) -> str:
    """The purpose.

    Raises:
        InvalidRequest: files cannot be uploaded for it.
    """
    if text not in PURPOSES:
        raise InvalidRequest(
            f"`purpose` is {text[:64]!r}: it must be one of {', '.join(PURPOSES)}.", param="purpose"
        )
    return text


def form_of(
    request: HttpRequest, name: str, others: Collection[str]
) -> tuple[TemporaryUploadedFile, dict[str, str]]:
    """The one file of the body, in the field `name`, and the values of the fields in `others`.

    Raises:
        InvalidRequest: the body has another form, or the file is empty.
    """
    if request.content_type != "multipart/form-data":
        raise InvalidRequest(f"The body must be multipart/form-data with the field `{name}`.")
    try:
        fields, uploads = request.POST, request.FILES
    except (MultiPartParserError, BadRequest) as error:
        raise InvalidRequest(f"The body cannot be parsed: {error}.") from error
    known: MultiValueDict[str, Any] = uploads
    if [*known] != [name] or len(known.getlist(name)) != 1:
        raise InvalidRequest(
            f"The body must have exactly one file, in the field `{name}`.", param=name
        )
    if unknown := sorted(fields.keys() - others):
        raise InvalidRequest(f"Unknown field: `{unknown[0][:64]}`.", param=unknown[0][:64])
    upload = uploads[name]
    assert isinstance(upload, TemporaryUploadedFile), "see FILE_UPLOAD_HANDLERS"
    if not upload.size:
        raise InvalidRequest("The file is empty.", param=name)
    return upload, {name: str(value) for name, value in fields.items()}


def _kept_s(fields: dict[str, str]) -> int | None:
    """How many seconds the file is to be kept; None if it does not expire."""
    anchor, text = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and text is None:
        return usual_seconds(fields["purpose"])
    if anchor != "created_at":
        raise InvalidRequest(
            "`expires_after[anchor]` must be `created_at`.", param="expires_after[anchor]"
        )
    seconds = int(text) if text and text.isascii() and text.isdigit() and len(text) < 9 else 0
    return kept_seconds(seconds, "expires_after[seconds]")


def usual_seconds(purpose: str) -> int | None:
    """How long a file is kept by default: files for batches thirty days, as in OpenAI's API."""
    return MOST_S if purpose == Purpose.BATCH else None


def kept_seconds(seconds: int, param: str) -> int:
    """The lifetime `seconds`.

    Raises:
        InvalidRequest: it is not from LEAST_S to MOST_S.
    """
    if not LEAST_S <= seconds <= MOST_S:
        raise InvalidRequest(
            f"`{param}` must be an integer from {LEAST_S} to {MOST_S} (seconds).", param=param
        )
    return seconds


def _retrieve(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    return shown(found(key, id))


def _delete(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    keeping.delete(key.tenant, found(key, id).pk)
    return {"id": id, "object": "file", "deleted": True}


files = keyed_by_method(USERS, GET=_list, POST=_create)
file = keyed_by_method(USERS, GET=_retrieve, DELETE=_delete)


@keyed(USERS)
def content(request: HttpRequest, key: ApiKey, id: str) -> StreamingHttpResponse:
    """`GET /v1/files/{id}/content`."""
    return answer_with(found(key, id))
