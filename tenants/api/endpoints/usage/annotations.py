"""Tags and scores of a request."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.http import Http404
from rest_framework import mixins, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.api.permissions import TenantView
from tenants.api.serializers.annotations import ScoreSerializer, TagSerializer
from tenants.listing import Listed, Where
from tenants.models import RequestScore, RequestTag, User
from tenants.models.annotations import AnnotationQuerySet
from tenants.permissions import Permission


class _Annotations(TenantView, mixins.DestroyModelMixin, GenericViewSet[Any]):
    """What is said of one request. Keys without the scope `admin` remove only what keys said."""

    needs = dict.fromkeys(("create", "destroy"), Permission.EDIT_ANNOTATIONS)
    queryset: Any
    filter_backends = []

    def _request(self) -> Listed:
        events = Where.to_annotate(self.caller).named(self.kwargs["request_id"]).events
        if not events:
            raise Http404
        return events[0]

    def get_queryset(self) -> models.QuerySet[Any]:
        found: AnnotationQuerySet[Any] = self.queryset.model.objects.of(
            self.caller.tenant, [self._request().id]
        )
        return found if self.caller.may(Permission.REMOVE_ANNOTATIONS) else found.by_keys()

    def create(self, request: Request, request_id: str) -> Response:
        found = self._request()
        asked = self.get_serializer(data=request.data)
        asked.is_valid(raise_exception=True)
        by = request.user if isinstance(request.user, User) else None
        made = self.queryset.model.objects.put(
            self.caller.tenant, found.id, found.started_at, by, **asked.validated_data
        )
        return Response(self.get_serializer(made).data, status.HTTP_201_CREATED)


class Tags(_Annotations):
    """Tags of a request. Adding one that it has changes nothing."""

    queryset = RequestTag.objects.none()
    serializer_class = TagSerializer
    lookup_field = "name"


class Scores(_Annotations):
    """Scores of a request. A new one replaces that of the same name and source."""

    queryset = RequestScore.objects.none()
    serializer_class = ScoreSerializer
