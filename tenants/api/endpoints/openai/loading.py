"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter` as in vLLM, for training loops.

A load makes a short-lived version (`tenants.adapters.short_lived`) and answers once it is served.
Messages of errors are vLLM's where it has the same error. What differs is `lora_path`: never a path
of this server, but the id of one of the tenant's files. `tenants.files.intake` bounds bodies, and
checks that the key may send them, before they get here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from django.core.exceptions import BadRequest
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError

from inference.errors import (
    InferenceError,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    RateLimitExceeded,
    StorageFull,
    Unavailable,
)
from inference.gateway.exchanges.exchange import ADAPTER_HEADER
from tenants.adapters import short_lived
from tenants.adapters.uploads import handover
from tenants.adapters.uploads.keeping import Destination
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.api.openai.shapes.loading import LoadAdapterRequest, UnloadAdapterRequest
from tenants.api.openai.views import body_of, keyed_by_method
from tenants.files import blobs
from tenants.models import (
    LIVE,
    AdapterVersion,
    ApiKey,
    BaseModel,
    Purpose,
    StoredFile,
    UploadSession,
)
from tenants.models.audit import Actor, acting, actor_of
from tenants.permissions import TABLE, Permission

WRITERS = TABLE[Permission.EDIT_ADAPTERS][1]
FLAGS = {"true": True, "false": False}
ACCEPTED = (
    "it must be the id of a file that was sent to `POST /v1/files` with the purpose `user_data`, "
    "an archive of the adapter's folder. No path of this server is read. The folder's files, or "
    "the archive, may also be sent in this request, as multipart/form-data with `lora_name`."
)


def _load(request: HttpRequest, key: ApiKey) -> HttpResponse:
    try:
        if request.content_type == "multipart/form-data":
            wanted, files = _form(request)
        else:
            wanted, files = body_of(request, LoadAdapterRequest), []
        _check(key, wanted, has_files=bool(files))
        where = Destination(
            key.tenant,
            wanted.lora_name,
            wanted.base_model,
            user=None,
            base_confirmed=wanted.confirm_base_model,
            short_lived=True,
        )
        actor = _actor(request, key)
        if files:
            session = handover.receive(where, files, actor)
        else:
            session = handover.receive_stored(where, _file(key, wanted.lora_path), actor)
        version = _served(handover.outcome(session))
    except UploadRefused as refusal:
        raise _refused(refusal) from refusal
    answer = _success(f"LoRA adapter '{wanted.lora_name}' added successfully.")
    answer[ADAPTER_HEADER.decode()] = f"{wanted.lora_name}@{version.digest}"
    return answer


def _unload(request: HttpRequest, key: ApiKey) -> HttpResponse:
    name = body_of(request, UnloadAdapterRequest).lora_name
    if not name:
        raise InvalidRequest(
            "'lora_name' needs to be provided to unload a LoRA adapter.", param="lora_name"
        )
    found = None
    if "\0" not in name:
        found = key.tenant.adapters.filter(name=name, short_lived=True).first()
    if found is None:
        raise NotFound(f"The lora adapter '{name[:64]}' cannot be found.", param="lora_name")
    with acting(_actor(request, key)):
        short_lived.unload(found)
    return _success(f"LoRA adapter '{name}' removed successfully.")


def _success(what: str) -> HttpResponse:
    return HttpResponse(f"Success: {what}", content_type="text/plain; charset=utf-8")


def _form(request: HttpRequest) -> tuple[LoadAdapterRequest, list[UploadedFile[bytes]]]:
    try:
        fields, uploads = request.POST.dict(), request.FILES
    except (MultiPartParserError, BadRequest) as error:
        raise InvalidRequest(f"The body cannot be parsed: {error}.") from error
    given: Mapping[str, Any] = {name: FLAGS.get(text, text) for name, text in fields.items()}
    texts = {
        name: fields[name] for name in ("lora_name", "lora_path", "base_model") & fields.keys()
    }
    try:
        wanted = msgspec.convert({**given, **texts}, LoadAdapterRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The form is not valid: {error}.") from None
    files = [file for _, several in uploads.lists() for file in several]
    if not files:
        raise InvalidRequest("The form has no file.")
    return wanted, files


def _check(key: ApiKey, wanted: LoadAdapterRequest, *, has_files: bool) -> None:
    """The checks that vLLM makes, with its messages, and ours.

    Raises:
        InvalidRequest: one fails.
    """
    name = wanted.lora_name
    if not name or not (wanted.lora_path or has_files):
        raise InvalidRequest("Both 'lora_name' and 'lora_path' must be provided.")
    if wanted.is_3d_lora_weight:
        raise InvalidRequest(
            "`is_3d_lora_weight` is true: such weights are not served.", param="is_3d_lora_weight"
        )
    if any("\0" in text for text in (name, wanted.lora_path, wanted.base_model)):
        raise InvalidRequest("The body contains a null character.")
    if BaseModel.objects.filter(name=name).exists():
        raise InvalidRequest(
            f"The lora adapter '{name}' conflicts with a served base model.", param="lora_name"
        )
    loaded = key.tenant.adapters.filter(name=name, short_lived=True, aliases__name=LIVE)
    if not wanted.load_inplace and loaded.exists():
        raise InvalidRequest(
            f"The lora adapter '{name}' has already been loaded. If you want to load the adapter "
            "in place, set 'load_inplace' to True.",
            param="lora_name",
        )


def _file(key: ApiKey, path: str) -> StoredFile:
    """The tenant's file that `lora_path` names.

    Raises:
        InvalidRequest: it names none, or one of another purpose.
    """
    file = key.tenant.files.current().filter(pk=path).first() if blobs.ID.fullmatch(path) else None
    if file is None or file.purpose != Purpose.USER_DATA:
        raise InvalidRequest(f"`lora_path` is {path[:64]!r}: {ACCEPTED}", param="lora_path")
    return file


def _served(session: UploadSession) -> AdapterVersion:
    """Raises Unavailable if the version is not served yet."""
    if session.version is None:
        raise Unavailable(
            "The adapter is still being checked. Load it again, with 'load_inplace'.",
            retry_after_s=5,
        )
    return session.version


def _refused(refusal: UploadRefused) -> InferenceError:
    if refusal.code == UploadRefusal.TOO_MANY_UPLOADS:
        return RateLimitExceeded(refusal.message, retry_after_s=refusal.wait)
    kinds = {UploadRefusal.QUOTA_EXCEEDED: StorageFull,
             UploadRefusal.PAYLOAD_TOO_LARGE: PayloadTooLarge}  # fmt: skip
    return kinds.get(refusal.code, InvalidRequest)(f"{refusal.message} ({refusal.code})")


def _actor(request: HttpRequest, key: ApiKey) -> Actor:
    actor = actor_of(request, key)
    assert actor is not None, "a key is one"
    return actor


load = keyed_by_method(WRITERS, POST=_load)
unload = keyed_by_method(WRITERS, POST=_unload)
