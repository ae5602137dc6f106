"""`/uploads`: resumable uploads by the protocol tus.

A session takes one archive. Its bytes do not pass through these views:
`tenants.adapters.uploads.intake` writes them to the session's file, and calls the views before and
after. A complete file is handed to a worker, like any other upload, and the session ends with the
version or with the refusal. Clients whose upload in one request was answered with 202 poll it here
as well.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.http import Http404
from django.utils.http import http_date
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    extend_schema_field,
)
from rest_framework import mixins, serializers, status
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.adapters.uploads import handover, parts, tus
from tenants.adapters.uploads.keeping import Destination, refuse_suspended
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.adapters.uploads.selection import is_archive_name
from tenants.api.permissions import TenantView
from tenants.api.problems import ProblemSerializer
from tenants.api.serializers.adapters import VersionSerializer
from tenants.api.serializers.strict import Creator
from tenants.models import ApiKey, Tenant, UploadSession, User
from tenants.models.audit import Actor, actor_of
from tenants.permissions import Permission
from tenants.problem_details import problem

EDIT = Permission.EDIT_ADAPTERS
UPLOADS = "/api/v1/uploads"
SPOKEN = {"create", "measure", "append", "destroy"}
"""Actions of the tus protocol, which require its version header; the others are not part of it."""


def header(name: str, description: str, type: Any = int, **options: Any) -> OpenApiParameter:
    return OpenApiParameter(name, type, OpenApiParameter.HEADER, description=description, **options)


RESUMABLE = header("Tus-Resumable", "1.0.0", str, required=True, enum=[tus.VERSION])
OFFSET = header("Upload-Offset", "Bytes received so far.", response=[200, 204])
LENGTH = header("Upload-Length", "Size of the whole archive in bytes.", response=[200, 204])
EXPIRES = header(
    "Upload-Expires", "When the unfinished upload expires.", str, response=[200, 201, 204]
)
UPLOAD_STATES = ["receiving", "checking", "complete", "refused"]
BYTES = {tus.CONTENT_TYPE: OpenApiTypes.BINARY}


class UploadSerializer(serializers.ModelSerializer[UploadSession]):
    """An upload and its result."""

    adapter = serializers.CharField(source="adapter_name")
    state = serializers.SerializerMethodField(
        help_text="`checking`: a worker is reading the upload."
    )
    offset = serializers.SerializerMethodField(help_text="Bytes received so far.")
    length = serializers.IntegerField(
        source="length_bytes", help_text="Size of the upload in bytes."
    )
    created_by = Creator()
    version = VersionSerializer(help_text="The version that the upload became.", allow_null=True)
    known = serializers.BooleanField(
        help_text="Whether that version already existed with this content."
    )
    problem = serializers.SerializerMethodField(help_text="Why the upload was refused.")

    class Meta:
        model = UploadSession
        fields = [
            "id", "adapter", "file_name", "state", "offset", "length", "version", "known",
            "problem", "created_by", "created_at", "expires_at",
        ]  # fmt: skip

    @extend_schema_field(serializers.ChoiceField(choices=UPLOAD_STATES))
    def get_state(self, session: UploadSession) -> str:
        if session.version_id is not None:
            return "complete"
        if session.refusal is not None:
            return "refused"
        return "receiving" if session.received_at is None else "checking"

    def get_offset(self, session: UploadSession) -> int:
        try:
            return offset_of(session)
        except Http404:  # the file is on another machine, or was lost in a power failure
            return 0

    @extend_schema_field(ProblemSerializer(allow_null=True))
    def get_problem(self, session: UploadSession) -> dict[str, Any] | None:
        return problem(**session.refusal) if session.refusal else None


class Uploads(
    TenantView, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[UploadSession]
):
    """Uploads that are to become versions."""

    needs = dict.fromkeys([*SPOKEN, "list", "retrieve", "metadata"], EDIT)
    queryset = UploadSession.objects.none()
    serializer_class = UploadSerializer
    filter_backends = []
    pagination_class = None
    lookup_field = "id"
    bodiless = SPOKEN
    parser_classes = [MultiPartParser]  # for the CSRF check, which looks for a form's token
    further_errors = [412, 429, 507]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.action in SPOKEN and request.headers.get("Tus-Resumable") != tus.VERSION:
            message = f"Tus-Resumable must be {tus.VERSION}, the version that this server supports."
            raise UploadRefused(UploadRefusal.VERSION_UNSUPPORTED, message)

    def finalize_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().finalize_response(*args, **kwargs)
        response["Tus-Resumable"] = response["Tus-Version"] = tus.VERSION
        response["Cache-Control"] = "no-store"
        return response

    def get_queryset(self) -> models.QuerySet[UploadSession]:
        related = ("tenant", "version__adapter", "version__created_by", "created_by")
        current = self.caller.tenant.uploads.current().lasting().select_related(*related)
        if self.action in ("measure", "append"):
            current = current.filter(oid="")  # weights alone do not become a version
        return current.unfinished().named() if self.action == "list" else current

    def options(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """The tus extensions and the size that this server supports."""
        headers = {"Tus-Extension": tus.EXTENSIONS, "Tus-Max-Size": str(tus.max_bytes())}
        return Response(status=status.HTTP_204_NO_CONTENT, headers=headers)

    @extend_schema(description="Unfinished uploads.")
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().list(request, *args, **kwargs)

    @extend_schema(
        request=None,
        parameters=[
            RESUMABLE,
            header("Upload-Length", "Size of the whole archive in bytes.", required=True),
            header(
                "Upload-Metadata",
                "Keys, each with its value in Base64: `adapter`, its name; `filename`, "
                "which ends in .zip, .tar, .tar.gz or .tgz; `base_model`, required for a new "
                "adapter if there are several; `confirm_base_model`, `true` if adapter_config.json "
                "has another name for the same base model.",
                str,
                required=True,
            ),
            header("Location", "URL of the upload.", str, response=[201]),
            EXPIRES,
        ],
        responses={
            201: OpenApiResponse(
                description="Created. Send the archive with PATCH to the URL in `Location`."
            )
        },
    )
    def create(self, request: Request) -> Response:
        """Begin an upload that survives a broken connection (tus 1.0, extension creation)."""
        user = request.user if isinstance(request.user, User) else None
        header = request.headers.get("Upload-Metadata", "")
        session = begin(self.caller.tenant, tus.length(request.headers), header, user)
        headers = {
            "Location": address_of(session, request),
            "Upload-Expires": http_date(session.expires_at.timestamp()),
        }
        return Response(status=status.HTTP_201_CREATED, headers=headers)

    @extend_schema(
        description=(
            "The state of an upload: the bytes received and its result. HEAD returns the "
            "headers Upload-Offset, Upload-Length and Upload-Metadata (tus 1.0)."
        )
    )
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().retrieve(request, *args, **kwargs)

    def measure(self, request: Request, id: str) -> Response:
        """HEAD: the offset to continue from. A refusal of a complete upload is reported here."""
        session = self.get_object()
        offset = offset_of(session)
        settle(session, offset, request)
        headers = _progress(session, offset) | {"Upload-Metadata": session.metadata}
        return Response(headers=headers)

    @extend_schema(
        request=BYTES,
        parameters=[
            RESUMABLE,
            header("Upload-Offset", "Offset of the body, as returned by HEAD.", required=True),
            OFFSET, LENGTH, EXPIRES,
        ],
        responses={
            204: OpenApiResponse(
                description="Appended. Once the upload is complete, GET returns its version, or "
                "the state `checking`."
            )
        },
    )  # fmt: skip
    def append(self, request: Request, id: str) -> Response:
        """Append to the upload. After the last byte it becomes a version, or is refused like an
        upload in one request."""
        if request.content_type != tus.CONTENT_TYPE:
            message = f"Content-Type is {request.content_type!r}: it must be {tus.CONTENT_TYPE}."
            raise UploadRefused(UploadRefusal.CONTENT_TYPE_UNSUPPORTED, message)
        session = self.get_object()
        asked, offset = tus.number(request.headers, "Upload-Offset"), offset_of(session)
        if asked != offset:
            message = (
                f"Upload-Offset is {asked}, but {offset} bytes have been received. Continue there."
            )
            raise UploadRefused(UploadRefusal.OFFSET_MISMATCH, message)
        settle(session, offset, request)
        return Response(status=status.HTTP_204_NO_CONTENT, headers=_progress(session, offset))

    @extend_schema(request=None, parameters=[RESUMABLE], responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        """Abandon the upload (tus 1.0, extension termination). A version that it became stays."""
        parts.discard(self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


def _progress(session: UploadSession, offset: int) -> dict[str, str]:
    return {
        "Upload-Offset": str(offset),
        "Upload-Length": str(session.length_bytes),
        "Upload-Expires": http_date(session.expires_at.timestamp()),
    }


def offset_of(session: UploadSession) -> int:
    """Bytes that have arrived. Read it once per request, because another one may be appending."""
    return session.length_bytes if session.received_at else parts.size(session.pk)


def begin(tenant: Tenant, length: int, header: str, user: User | None) -> UploadSession:
    """Begin an upload of `length` bytes for the tenant; `header` is Upload-Metadata.

    Raises:
        UploadRefused: it could not become a version, or the tenant has too many uploads under way.
    """
    metadata = tus.metadata(header)
    session = UploadSession(
        tenant=tenant,
        adapter_name=metadata.get("adapter", ""),
        file_name=metadata.get("filename", ""),
        base_model_name=metadata.get("base_model", ""),
        base_confirmed=tus.flag("confirm_base_model", metadata.get("confirm_base_model", "")),
        metadata=header,
        length_bytes=length,
        created_by=user,
    )
    _check(session)
    handover.admit(session)
    return session


def _check(session: UploadSession) -> None:
    """Refuse now what would otherwise be refused only after all of its bytes have arrived."""
    if not is_archive_name(session.file_name) or len(session.file_name) > 255:
        value = session.file_name or None
        raise tus.invalid(
            "Upload-Metadata's filename", value, "the name of a .zip, .tar, .tar.gz or .tgz"
        )
    Destination.of(session).refuse_unless_possible()


def settle(session: UploadSession, offset: int, request: Request) -> None:
    """Make an upload that is complete at `offset` a version, like any other; else do nothing.

    Two requests may call it at once: one of them hands the upload over, both wait for the outcome.

    Raises:
        UploadRefused: it is refused, now or already.
        Http404: its file is gone.
    """
    if offset != session.length_bytes:
        return
    if not session.ended:
        refuse_suspended(session.tenant)
        handover.hand_over(session, actor_behind(request))
    handover.outcome(session)


def actor_behind(request: Request) -> Actor:
    """The actor of this request, for the audit log."""
    key = request.auth if isinstance(request.auth, ApiKey) else None
    actor = actor_of(request._request, key)
    assert actor is not None, "a caller is a person or a key"
    return actor


def address_of(session: UploadSession, request: Request) -> str:
    """The upload's URL."""
    return request.build_absolute_uri(f"{UPLOADS}/{session.pk}?tenant={session.tenant.slug}")
