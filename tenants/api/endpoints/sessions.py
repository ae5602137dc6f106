"""`/uploads`: uploads that survive a broken connection, by the protocol tus.

A session takes one archive. The bytes never come here: `tenants.adapters.uploads.intake` puts them
into the session's file, and asks here before and after. A file that is complete takes the way
of any other upload, and the session ends with the version or with the refusal.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import structlog
from django.conf import settings
from django.db import models, transaction
from django.http import Http404
from django.utils import timezone
from django.utils.http import http_date
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    extend_schema_field,
)
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.adapters.uploads import parts, tus
from tenants.adapters.uploads.receiving import is_archive_name, unpack
from tenants.adapters.uploads.refusals import Refusal, UploadRefused
from tenants.api.endpoints.uploads import (
    Destination,
    base_model_asked,
    check_name,
    keep,
    refuse_suspended,
)
from tenants.api.permissions import TenantView
from tenants.api.problems import ProblemSerializer, problem
from tenants.api.schema import Schema
from tenants.api.serializers import VersionSerializer
from tenants.models import ApiKey, Tenant, UploadSession, User
from tenants.models.audit import acting, actor_of
from tenants.permissions import Permission

log = structlog.get_logger(__name__)

EDIT = Permission.EDIT_ADAPTERS
SPOKEN = {"create", "measure", "append", "destroy"}
"""Actions of the protocol, which say its version; the others are ours."""


def _header(name: str, description: str, type: Any = int, **options: Any) -> OpenApiParameter:
    return OpenApiParameter(name, type, OpenApiParameter.HEADER, description=description, **options)


RESUMABLE = _header("Tus-Resumable", "1.0.0", str, required=True, enum=[tus.VERSION])
OFFSET = _header("Upload-Offset", "Bytes that have arrived.", response=[200, 204])
LENGTH = _header("Upload-Length", "Bytes of the whole archive.", response=[200, 204])
EXPIRES = _header("Upload-Expires", "Until when it can go on.", str, response=[200, 201, 204])
BYTES = {tus.CONTENT_TYPE: OpenApiTypes.BINARY}


class UploadSerializer(serializers.ModelSerializer[UploadSession]):
    """An upload in parts, and what became of it."""

    adapter = serializers.CharField(source="adapter_name")
    state = serializers.SerializerMethodField()
    offset = serializers.SerializerMethodField(help_text="Bytes that have arrived.")
    length = serializers.IntegerField(source="length_bytes", help_text="Bytes of the archive.")
    created_by = serializers.SlugRelatedField[User](slug_field="username", read_only=True)
    version = VersionSerializer(help_text="What it became.", allow_null=True)
    known = serializers.BooleanField(help_text="That version had this content before.")
    problem = serializers.SerializerMethodField(help_text="Why it was refused.")

    class Meta:
        model = UploadSession
        fields = [
            "id", "adapter", "file_name", "state", "offset", "length", "version", "known",
            "problem", "created_by", "created_at", "expires_at",
        ]  # fmt: skip

    def get_state(self, session: UploadSession) -> str:
        """`receiving`, `complete` or `refused`."""
        if session.version_id is not None:
            return "complete"
        return "receiving" if session.refusal is None else "refused"

    def get_offset(self, session: UploadSession) -> int:
        try:
            return offset_of(session)
        except Http404:  # another machine's, or its power went
            return 0

    @extend_schema_field(ProblemSerializer(allow_null=True))
    def get_problem(self, session: UploadSession) -> dict[str, Any] | None:
        return problem(**session.refusal) if session.refusal else None


class Uploads(
    TenantView, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[UploadSession]
):
    """Uploads in parts."""

    schema = Schema()
    needs = dict.fromkeys([*SPOKEN, "list", "retrieve", "metadata"], EDIT)
    queryset = UploadSession.objects.none()
    serializer_class = UploadSerializer
    filter_backends = []
    pagination_class = None
    lookup_field = "id"

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.action in SPOKEN and request.headers.get("Tus-Resumable") != tus.VERSION:
            message = f"Tus-Resumable must be {tus.VERSION}, the version that this server speaks."
            raise UploadRefused(Refusal.VERSION_UNSUPPORTED, message)

    def finalize_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().finalize_response(*args, **kwargs)
        response["Tus-Resumable"] = response["Tus-Version"] = tus.VERSION
        response["Cache-Control"] = "no-store"
        return response

    def get_queryset(self) -> models.QuerySet[UploadSession]:
        related = ("tenant", "version__adapter", "version__created_by", "created_by")
        current = self.caller.tenant.uploads.current().select_related(*related)
        return current.unfinished() if self.action == "list" else current

    def options(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """What this server takes."""
        said = {"Tus-Extension": tus.EXTENSIONS, "Tus-Max-Size": str(tus.max_bytes())}
        return Response(status=status.HTTP_204_NO_CONTENT, headers=said)

    @extend_schema(description="Uploads that are not finished.")
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().list(request, *args, **kwargs)

    @extend_schema(
        request=None,
        parameters=[
            RESUMABLE,
            _header("Upload-Length", "Bytes of the whole archive.", required=True),
            _header(
                "Upload-Metadata",
                "Keys, each with its value in Base64: `adapter`, its name; `filename`, which ends "
                "with .tar or .zip; `base_model`, for a new adapter where there are several.",
                str,
                required=True,
            ),
            _header("Location", "The upload's own address.", str, response=[201]),
            EXPIRES,
        ],
        responses={201: OpenApiResponse(description="Made; PATCH its address.")},
    )
    def create(self, request: Request) -> Response:
        """Begin an upload that survives a broken connection (tus 1.0, extension creation)."""
        user = request.user if isinstance(request.user, User) else None
        header = request.headers.get("Upload-Metadata", "")
        session = begin(self.caller.tenant, tus.length(request.headers), header, user)
        where = f"{request.build_absolute_uri(request.path)}/{session.pk}"
        headers = {
            "Location": f"{where}?tenant={self.caller.tenant.slug}",
            "Upload-Expires": http_date(session.expires_at.timestamp()),
        }
        return Response(status=status.HTTP_201_CREATED, headers=headers)

    @extend_schema(
        description="An upload: how much of it has arrived, and what became of it. HEAD answers "
        "with the headers Upload-Offset, Upload-Length and Upload-Metadata (tus 1.0)."
    )
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().retrieve(request, *args, **kwargs)

    def measure(self, request: Request, id: str) -> Response:
        """HEAD: where to go on. Of a complete upload it is true only once a version was made."""
        session = self.get_object()
        offset = offset_of(session)
        settle(session, offset, request)
        headers = _progress(session, offset) | {"Upload-Metadata": session.metadata}
        return Response(headers=headers)

    @extend_schema(
        request=BYTES,
        parameters=[
            RESUMABLE,
            _header("Upload-Offset", "Where the body belongs: what HEAD says.", required=True),
            OFFSET, LENGTH, EXPIRES,
        ],
        responses={
            204: OpenApiResponse(description="Appended; at the end, GET names the version.")
        },
    )  # fmt: skip
    def append(self, request: Request, id: str) -> Response:
        """Append to the upload. The last byte makes it a version, or has it refused as a whole
        adapter would be."""
        if request.content_type != tus.CONTENT_TYPE:
            message = f"Content-Type is {request.content_type!r}, but must be {tus.CONTENT_TYPE}."
            raise UploadRefused(Refusal.CONTENT_TYPE_UNSUPPORTED, message)
        session = self.get_object()
        asked, offset = tus.number(request.headers, "Upload-Offset"), offset_of(session)
        if asked != offset:
            message = f"Upload-Offset is {asked}, but {offset} bytes have arrived: go on there."
            raise UploadRefused(Refusal.OFFSET_MISMATCH, message)
        settle(session, offset, request)
        return Response(status=status.HTTP_204_NO_CONTENT, headers=_progress(session, offset))

    @extend_schema(request=None, parameters=[RESUMABLE], responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        """Give the upload up (tus 1.0, extension termination). A version that it became stays."""
        parts.discard(self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


def _progress(session: UploadSession, offset: int) -> dict[str, str]:
    return {
        "Upload-Offset": str(offset),
        "Upload-Length": str(session.length_bytes),
        "Upload-Expires": http_date(session.expires_at.timestamp()),
    }


def offset_of(session: UploadSession) -> int:
    """Bytes of it that have arrived. To be read once for each request: another may be appending.

    Raises:
        Http404: its file is gone.
    """
    if session.ended:
        return session.length_bytes
    try:
        return parts.durable_size(session.pk)
    except FileNotFoundError as error:
        session.refresh_from_db()
        if session.ended:
            return session.length_bytes
        log.error("upload_file_missing", upload=str(session.pk), path=str(parts.path(session.pk)))
        raise Http404 from error


def begin(tenant: Tenant, length: int, header: str, user: User | None) -> UploadSession:
    """A new upload of `length` bytes into the tenant; `header` is Upload-Metadata.

    Raises:
        UploadRefused: it could not become a version, or the tenant has too much under way.
    """
    refuse_suspended(tenant)
    told = tus.metadata(header)
    session = UploadSession(
        tenant=tenant,
        adapter_name=told.get("adapter", ""),
        file_name=told.get("filename", ""),
        base_model_name=told.get("base_model", ""),
        metadata=header,
        length_bytes=length,
        created_by=user,
    )
    _check(session)
    with transaction.atomic():
        # Of two requests at once, the second counts the first one's upload too.
        Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
        _check_quota(tenant, length)
        session.save()
        parts.create(session.pk)
    return session


def _check(session: UploadSession) -> None:
    """Refuse now what would be refused after gigabytes."""
    if not is_archive_name(session.file_name) or len(session.file_name) > 255:
        value = session.file_name or None
        raise tus.invalid("Upload-Metadata's filename", value, "the name of a .tar or .zip")
    check_name(session.tenant, session.adapter_name)
    base_model_asked(session.tenant, session.adapter_name, session.base_model_name)


def _check_quota(tenant: Tenant, length: int) -> None:
    unfinished = tenant.uploads.unfinished()
    used = unfinished.aggregate(n=models.Count("pk"), bytes=models.Sum("length_bytes"))
    if used["n"] >= settings.MAX_TENANT_UPLOADS:
        limit = f"{used['n']} unfinished uploads, and {settings.MAX_TENANT_UPLOADS} are allowed"
    elif (used["bytes"] or 0) + length > settings.MAX_TENANT_UPLOAD_BYTES:
        limit = (
            f"unfinished uploads of {used['bytes'] or 0} bytes; with this one's Upload-Length of "
            f"{length} they are above the {settings.MAX_TENANT_UPLOAD_BYTES} bytes allowed"
        )
    else:
        return
    first = unfinished.values_list("expires_at", flat=True).order_by("expires_at").first()
    wait = max(1, int((first - timezone.now()).total_seconds())) if first else None
    raise UploadRefused(
        Refusal.TOO_MANY_UPLOADS,
        f"The tenant {tenant.slug} has {limit}: finish one, or delete it.",
        wait,
    )


def settle(session: UploadSession, offset: int, request: Request) -> None:
    """Make an upload that is complete at `offset` a version, as any other; else do nothing.

    Two requests may do this at once: content names the version, so both find the same one.

    Raises:
        UploadRefused: it is refused, now or already.
        Http404: its file is gone.
    """
    if not session.ended and offset == session.length_bytes:
        refuse_suspended(session.tenant)
        key = request.auth if isinstance(request.auth, ApiKey) else None
        actor = actor_of(request._request, key)
        assert actor is not None, "a caller is a person or a key"
        with acting(actor):
            _make_version(session)
        parts.remove(session.pk)
    if session.refusal:
        raise UploadRefused(Refusal(session.refusal["code"]), session.refusal["detail"])


def _make_version(session: UploadSession) -> None:
    """End the session with the version that its archive becomes, or with the refusal."""
    where = Destination(
        session.tenant, session.adapter_name, session.base_model_name, session.created_by
    )
    try:
        with parts.opened(session.pk) as archive, closing(unpack(archive, session.file_name)) as it:
            version, kept = keep(where, it)
    except UploadRefused as refusal:
        told = {"status": refusal.status_code, "code": refusal.code, "detail": str(refusal.detail)}
        session.end(refusal=told)
    else:
        session.end(version=version, known=not kept)
