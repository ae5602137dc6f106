"""`POST /adapters/{name}/versions`: an uploaded adapter becomes a new version, or is known."""

from __future__ import annotations

from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from rest_framework import status
from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.adapters.checks.findings import shown, told
from tenants.adapters.uploads import handover
from tenants.adapters.uploads.keeping import Destination, refuse_suspended
from tenants.adapters.uploads.refusals import Refusal, UploadRefused
from tenants.api.endpoints.sessions import UploadSerializer, actor_behind, address_of
from tenants.api.parsing import measure
from tenants.api.serializers import VersionSerializer
from tenants.models import Tenant, UploadSession, User
from tenants.models.audit import Actor


def receive(request: Request, tenant: Tenant, name: str) -> Response:
    """Answer an upload to the tenant's adapter `name`: 201 with the new version, which a worker
    then judges, 200 with the one that has this content already, or 202 with the upload where a
    worker has not looked into it yet.

    Raises:
        UploadRefused: see `Refusal`. Nothing was kept.
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
    """The request's upload, with the version that it became if that came soon.

    Raises:
        UploadRefused: see `Refusal`. Nothing was kept.
    """
    refuse_suspended(tenant)
    files, base_name = _parsed(request)
    user = request.user if isinstance(request.user, User) else None
    where = Destination(tenant, name, base_name, user)
    return handover.outcome(handover.receive(where, files, actor))


def _parsed(request: Request) -> tuple[list[UploadedFile[bytes]], str]:
    """The files, and the form field `base_model`."""
    if not str(request.content_type).startswith("multipart/form-data"):
        raise UploadRefused(
            Refusal.NOT_MULTIPART,
            f"The content type is {shown(request.content_type)}, but must be multipart/form-data.",
        )
    measure(request._request)
    try:
        files, base_name = request.FILES, request.POST.get("base_model", "")
    except (ParseError, SuspiciousOperation) as error:
        raise UploadRefused(Refusal.NOT_MULTIPART, told(error)) from error
    return [file for _, several in files.lists() for file in several], base_name
