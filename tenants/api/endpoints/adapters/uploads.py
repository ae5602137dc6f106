"""`POST /adapters/{name}/versions`: an upload becomes a new version, or matches a known one."""

from __future__ import annotations

from collections.abc import Mapping

from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from rest_framework import status
from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.adapters.checks.findings import message_of, shown
from tenants.adapters.uploads import handover, tus
from tenants.adapters.uploads.keeping import Destination, refuse_suspended
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.adapters.uploads.reservations import reservation
from tenants.api.endpoints.adapters.sessions import UploadSerializer, actor_behind, address_of
from tenants.api.parsing import measure
from tenants.api.serializers.adapters import VersionSerializer
from tenants.models import Tenant, UploadSession, User
from tenants.models.audit import Actor


def receive(request: Request, tenant: Tenant, name: str) -> Response:
    """Answer an upload to the tenant's adapter `name`: 201 with the new version, which a worker
    then checks, 200 with the version that has this content already, or 202 with the upload if a
    worker has not looked into it yet.

    Raises:
        UploadRefused: see `UploadRefusal`. Nothing was kept.
    """
    session = take_in(request, tenant, name, actor_behind(request))
    context = {"request": request}
    if session.version is None:
        body = UploadSerializer(session, context=context).data
        headers = {"Location": address_of(session, request)}
        return Response(body, status.HTTP_202_ACCEPTED, headers=headers)
    body = VersionSerializer(session.version, context=context).data
    return Response(body, status.HTTP_200_OK if session.known else status.HTTP_201_CREATED)


def take_in(request: Request, tenant: Tenant, name: str, actor: Actor) -> UploadSession:
    """Store the request's upload; returns it, with the version that it became if that was soon.

    Raises:
        UploadRefused: see `UploadRefusal`. Nothing was kept.
    """
    refuse_suspended(tenant)
    files, fields = _parsed(request)
    user = request.user if isinstance(request.user, User) else None
    confirmed = tus.flag("confirm_base_model", fields.get("confirm_base_model", ""))
    where = Destination(tenant, name, fields.get("base_model", ""), user, confirmed)
    reserved = reservation(request._request)
    return handover.outcome(handover.receive(where, files, actor, reserved))


def _parsed(request: Request) -> tuple[list[UploadedFile[bytes]], Mapping[str, str]]:
    """The files and the fields of the form."""
    if not str(request.content_type).startswith("multipart/form-data"):
        raise UploadRefused(
            UploadRefusal.NOT_MULTIPART,
            f"Content-Type is {shown(request.content_type)}: it must be multipart/form-data.",
        )
    measure(request._request)
    try:
        files, fields = request.FILES, request.POST.dict()
    except (ParseError, SuspiciousOperation) as error:
        raise UploadRefused(UploadRefusal.NOT_MULTIPART, message_of(error)) from error
    return [file for _, several in files.lists() for file in several], fields
