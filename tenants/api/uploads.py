"""`POST /adapters/{name}/versions`: keep an uploaded adapter as a new version, or find it again."""

from __future__ import annotations

import io
from contextlib import closing

from django.core.exceptions import SuspiciousOperation, ValidationError
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from rest_framework import status
from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.adapters import jobs, store
from tenants.adapters.config import MAX_CONFIG_BYTES
from tenants.adapters.findings import shown, told
from tenants.adapters.receiving import Upload, collect
from tenants.adapters.refusals import Refusal, UploadRefused
from tenants.adapters.strict_json import BadJson, load_object
from tenants.api.serializers import VersionSerializer
from tenants.models import Adapter, AdapterVersion, BaseModel, State, Tenant, User

WITHOUT_FILES = (State.UPLOADING, State.ARCHIVED)
"""Whoever brings the content of a version in these states gives it its files."""


def receive(request: Request, tenant: Tenant, name: str) -> Response:
    """Answer an upload to the tenant's adapter `name`: 201 with the new version, which a worker
    then judges, or 200 with the one that has this content already.

    Raises:
        UploadRefused: see `take_in`.
    """
    version, kept = take_in(request, tenant, name)
    body = VersionSerializer(version, context={"request": request}).data
    return Response(body, status.HTTP_201_CREATED if kept else status.HTTP_200_OK)


def take_in(request: Request, tenant: Tenant, name: str) -> tuple[AdapterVersion, bool]:
    """The version that holds the request's adapter, and whether this request gave it its files.

    An adapter of that name is made if there is none.

    Raises:
        UploadRefused: see `Refusal`. Nothing was kept.
    """
    if not tenant.active:
        raise UploadRefused(Refusal.TENANT_SUSPENDED, f"The tenant {tenant.slug} is suspended.")
    files, base_name = _parsed(request)
    with closing(collect(files)) as upload:
        base_model = _base_model(tenant, name, base_name, upload)
        user = request.user if isinstance(request.user, User) else None
        adapter, is_new = _adapter(tenant, name, base_model, user)
        try:
            return _keep(adapter, upload, user)
        except BaseException:
            if is_new:
                Adapter.objects.filter(pk=adapter.pk, versions=None).delete()
            raise


def _parsed(request: Request) -> tuple[list[UploadedFile[bytes]], str]:
    """The files, and the form field `base_model`."""
    if not str(request.content_type).startswith("multipart/form-data"):
        raise UploadRefused(
            Refusal.NOT_MULTIPART,
            f"The content type is {shown(request.content_type)}, but must be multipart/form-data.",
        )
    _measure(request)
    try:
        files, base_name = request.FILES, request.POST.get("base_model", "")
    except (ParseError, SuspiciousOperation) as error:
        raise UploadRefused(Refusal.NOT_MULTIPART, told(error)) from error
    return [file for _, several in files.lists() for file in several], base_name


def _measure(request: Request) -> None:
    """Note the length of a chunked body: neither Django nor DRF parses one that has none."""
    body = getattr(request._request, "_stream", None)
    if not request.META.get("CONTENT_LENGTH") and body is not None and body.seekable():
        request.META["CONTENT_LENGTH"] = str(body.seek(0, io.SEEK_END))
        body.seek(0)


def _base_model(tenant: Tenant, name: str, asked: str, upload: Upload) -> BaseModel:
    """The adapter's base model where it exists; else as asked; else the only one; else as the
    configuration says."""
    adapter = Adapter.objects.select_related("base_model").filter(tenant=tenant, name=name).first()
    if adapter is not None:
        if asked and asked != adapter.base_model.name:
            raise UploadRefused(
                Refusal.BASE_MODEL_MISMATCH,
                f"{name} is on the base model {adapter.base_model}, not on {shown(asked)}.",
            )
        return adapter.base_model
    known = {base.name: base for base in BaseModel.objects.all()}
    if asked and asked not in known:
        raise UploadRefused(
            Refusal.BASE_MODEL_UNKNOWN,
            f"There is no base model {shown(asked)}; there are: {', '.join(known) or 'none yet'}.",
        )
    if len(known) == 1:
        return next(iter(known.values()))
    chosen = known.get(asked or _trained_on(upload))
    if chosen is None:
        raise UploadRefused(
            Refusal.BASE_MODEL_AMBIGUOUS,
            f"Choose a base model with the field base_model: {', '.join(known) or 'none yet'}.",
        )
    return chosen


def _trained_on(upload: Upload) -> str:
    """What the configuration names as its base model; empty where it cannot be read."""
    raw = upload.config.read(MAX_CONFIG_BYTES + 1)
    upload.config.seek(0)
    try:
        return str(load_object(raw[:MAX_CONFIG_BYTES]).get("base_model_name_or_path"))
    except BadJson:
        return ""


def _adapter(
    tenant: Tenant, name: str, base_model: BaseModel, user: User | None
) -> tuple[Adapter, bool]:
    """The tenant's adapter of this name, and whether it is new."""
    adapter = Adapter(tenant=tenant, name=name, base_model=base_model, created_by=user)
    try:
        adapter.clean_fields()
        adapter.clean()
    except ValidationError as error:
        raise UploadRefused(Refusal.NAME_INVALID, " ".join(error.messages)) from error
    return Adapter.objects.get_or_create(
        tenant=tenant, name=name, defaults={"base_model": base_model, "created_by": user}
    )


def _keep(adapter: Adapter, upload: Upload, user: User | None) -> tuple[AdapterVersion, bool]:
    """The version with this content, and whether this upload gave it its files.

    The row comes first, so that files which a crash leaves behind have an owner that `clean_up`
    finds. Of two uploads of the same content at once, both store their files; the adapter's row
    lock lets one of them hand its folder over, and the other removes its own.
    """
    folder = store.new_folder(adapter, upload.digest)
    version, _ = adapter.add_version(upload.digest, folder=folder, created_by=user)
    if version.state not in WITHOUT_FILES:
        return version, False
    try:
        store.save(folder, upload)
        version, kept = _hand_over(adapter, upload, folder, user)
    except BaseException:
        _forget(adapter, upload.digest, folder)
        raise
    if not kept:
        store.remove(folder)
    return version, kept


def _hand_over(
    adapter: Adapter, upload: Upload, folder: str, user: User | None
) -> tuple[AdapterVersion, bool]:
    """Give the version its files and have it judged, unless another upload did."""
    with transaction.atomic():
        version, _ = adapter.add_version(upload.digest, folder=folder, created_by=user)
        if version.state not in WITHOUT_FILES:
            return version, False
        version.advance(
            State.VALIDATING, folder=folder, size_bytes=upload.size_bytes, report={}, config={}
        )
        jobs.judge_later(version)
        return version, True


def _forget(adapter: Adapter, digest: str, folder: str) -> None:
    """After a failure: leave neither files nor a row, but what another upload has taken over."""
    store.remove(folder)
    adapter.versions.filter(digest=digest, state=State.UPLOADING, folder=folder).delete()
