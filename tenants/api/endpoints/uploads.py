"""`POST /adapters/{name}/versions`: keep an uploaded adapter as a new version, or find it again."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from django.core.exceptions import SuspiciousOperation, ValidationError
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from rest_framework import status
from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.adapters import jobs, store
from tenants.adapters.checks.config import MAX_CONFIG_BYTES
from tenants.adapters.checks.findings import shown, told
from tenants.adapters.checks.strict_json import BadJson, load_object
from tenants.adapters.uploads.receiving import Upload, collect
from tenants.adapters.uploads.refusals import Refusal, UploadRefused
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
    refuse_suspended(tenant)
    files, base_name = _parsed(request)
    user = request.user if isinstance(request.user, User) else None
    return keep_files(Destination(tenant, name, base_name, user), files)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an upload belongs: the tenant's adapter `name`, which is made if there is none, on the
    base model `base_name` or, where that is empty, on the one that is meant. `user` brings it."""

    tenant: Tenant
    name: str
    base_name: str
    user: User | None


def keep_files(
    where: Destination, files: Sequence[UploadedFile[bytes]]
) -> tuple[AdapterVersion, bool]:
    """As `keep`, with the files of a request."""
    refuse_suspended(where.tenant)
    with closing(collect(files)) as upload:
        return keep(where, upload)


def refuse_suspended(tenant: Tenant) -> None:
    """Raises UploadRefused for a tenant that is suspended."""
    if not tenant.active:
        raise UploadRefused(Refusal.TENANT_SUSPENDED, f"The tenant {tenant.slug} is suspended.")


def keep(where: Destination, upload: Upload) -> tuple[AdapterVersion, bool]:
    """The version that holds the upload's content, and whether this upload gave it its files.

    Raises:
        UploadRefused: see `Refusal`. Nothing was kept.
    """
    base_model = _base_model(where, upload)
    adapter, is_new = _adapter(where, base_model)
    try:
        return _keep(adapter, upload, where.user)
    except Adapter.DoesNotExist as error:
        message = f"The adapter {where.name} was deleted during this upload: send it again."
        raise UploadRefused(Refusal.ADAPTER_DELETED, message) from error
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


def _base_model(where: Destination, upload: Upload) -> BaseModel:
    """The adapter's base model where it exists; else as asked; else the only one; else as the
    configuration says."""
    if (base_model := base_model_asked(where.tenant, where.name, where.base_name)) is not None:
        return base_model
    known = {base.name: base for base in BaseModel.objects.all()}
    if len(known) == 1:
        return next(iter(known.values()))
    chosen = known.get(_trained_on(upload))
    if chosen is None:
        raise UploadRefused(
            Refusal.BASE_MODEL_AMBIGUOUS,
            f"Choose a base model with the field base_model: {', '.join(known) or 'none yet'}.",
        )
    return chosen


def base_model_asked(tenant: Tenant, name: str, asked: str) -> BaseModel | None:
    """The base model of the tenant's adapter `name` where it exists, else the one that is asked
    for; None where the upload has to say.

    Raises:
        UploadRefused: the adapter is on another than the one asked for, or there is none such.
    """
    adapter = Adapter.objects.select_related("base_model").filter(tenant=tenant, name=name).first()
    if adapter is not None:
        if asked and asked != adapter.base_model.name:
            raise UploadRefused(
                Refusal.BASE_MODEL_MISMATCH,
                f"{name} is on the base model {adapter.base_model}, not on {shown(asked)}.",
            )
        return adapter.base_model
    if not asked:
        return None
    base_model = BaseModel.objects.filter(name=asked).first()
    if base_model is None:
        known = ", ".join(BaseModel.objects.values_list("name", flat=True))
        raise UploadRefused(
            Refusal.BASE_MODEL_UNKNOWN,
            f"There is no base model {shown(asked)}; there are: {known or 'none yet'}.",
        )
    return base_model


def _trained_on(upload: Upload) -> str:
    """What the configuration names as its base model; empty where it cannot be read."""
    raw = upload.config.read(MAX_CONFIG_BYTES + 1)
    upload.config.seek(0)
    try:
        return str(load_object(raw[:MAX_CONFIG_BYTES]).get("base_model_name_or_path"))
    except BadJson:
        return ""


def _adapter(where: Destination, base_model: BaseModel) -> tuple[Adapter, bool]:
    """The tenant's adapter of this name, and whether it is new."""
    check_name(where.tenant, where.name)
    return Adapter.objects.get_or_create(
        tenant=where.tenant,
        name=where.name,
        defaults={"base_model": base_model, "created_by": where.user},
    )


def check_name(tenant: Tenant, name: str) -> None:
    """Raises UploadRefused where no adapter can be called so."""
    adapter = Adapter(tenant=tenant, name=name)
    try:
        adapter.clean_fields(exclude=["base_model", "created_by"])
        adapter.clean()
    except ValidationError as error:
        raise UploadRefused(Refusal.NAME_INVALID, " ".join(error.messages)) from error


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
