"""For operators: revisions of base models, and rollouts, which move tenants between them."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Count, Q
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from tenants.api.filters import RevisionFilter, RolloutFilter
from tenants.api.permissions import Operating
from tenants.api.serializers.pools import (
    RevisionSerializer,
    RolloutSerializer,
    TurnSerializer,
    WeightSerializer,
)
from tenants.api.strict_view import StrictView
from tenants.errors import IllegalRolloutStep
from tenants.models import GatewayProcess, PoolRevision, Rollout, RolloutTenant, Tenant


class Revisions(
    StrictView,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.UpdateModelMixin,
    GenericViewSet[PoolRevision],
):
    """The revisions of each base model, last seen first. Tenants are served by `serving` ones; a
    `waiting` one is for a rollout, or takes over when no engine of those is connected."""

    permission_classes = [Operating]
    queryset: models.QuerySet[PoolRevision] = (
        PoolRevision.objects.select_related("base_model")
        .annotate(
            trials_passed=Count("trials", Q(trials__passed=True)),
            trials_failed=Count("trials", Q(trials__passed=False)),
        )
        .order_by("-seen_at", "-id")
    )
    serializer_class = RevisionSerializer
    filterset_class = RevisionFilter
    further_errors = [409]

    def get_serializer_context(self) -> dict[str, Any]:
        engines = GatewayProcess.objects.engines_of()
        return {**super().get_serializer_context(), "engines": engines}

    @extend_schema(
        description=(
            "Set the revision's standing for all tenants at once. A rollout moves them "
            "gradually instead and observes errors and latency."
        )
    )
    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().partial_update(request, *args, **kwargs)


class Rollouts(
    StrictView,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    GenericViewSet[Rollout],
):
    """Rollouts, the latest first. A worker advances each running one step by step; a rollout is
    rolled back automatically if a guard fails."""

    permission_classes = [Operating]
    queryset: models.QuerySet[Rollout] = Rollout.objects.select_related(
        "base_model", "revision", "created_by"
    )
    serializer_class = RolloutSerializer
    filterset_class = RolloutFilter
    bodiless = ["pause", "resume", "finish", "abort"]
    further_errors = [409]

    @extend_schema(description="Start to move the base model's tenants to a waiting revision.")
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().create(request, *args, **kwargs)

    def perform_create(self, serializer: BaseSerializer[Rollout]) -> None:
        serializer.save(created_by=self.request.user)

    @extend_schema(request=None, responses=RolloutSerializer)
    def pause(self, request: Request, pk: int) -> Response:
        """Keep the present weight. Guards stay active."""
        rollout = self.get_object()
        rollout.pause()
        return self._shown(rollout)

    @extend_schema(request=None, responses=RolloutSerializer)
    def resume(self, request: Request, pk: int) -> Response:
        """Continue; the time at the present weight starts again."""
        rollout = self.get_object()
        rollout.resume()
        return self._shown(rollout)

    @extend_schema(request=WeightSerializer, responses=RolloutSerializer)
    def weigh(self, request: Request, pk: int) -> Response:
        """Set the weight, regardless of the plan. A tenant's adapters are still tried before it
        moves."""
        given = WeightSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        rollout = self.get_object()
        rollout.set_weight(given.validated_data["weight"])
        return self._shown(rollout)

    @extend_schema(request=None, responses=RolloutSerializer)
    def finish(self, request: Request, pk: int) -> Response:
        """Make the new revision the only one that serves, for all tenants. Adapters that failed on
        it are no longer served."""
        rollout = self.get_object()
        rollout.finish()
        return self._shown(rollout)

    @extend_schema(request=None, responses=RolloutSerializer)
    def abort(self, request: Request, pk: int) -> Response:
        """Move every tenant back immediately, and withdraw the revision."""
        rollout = self.get_object()
        rollout.abort()
        return self._shown(rollout)

    def _shown(self, rollout: Rollout) -> Response:
        return Response(self.get_serializer(rollout).data)


class Turns(StrictView, mixins.ListModelMixin, GenericViewSet[RolloutTenant]):
    """Tenants that an operator has set to move first or last in a rollout."""

    permission_classes = [Operating]
    queryset = RolloutTenant.objects.select_related("tenant")
    serializer_class = TurnSerializer
    filter_backends = []
    further_errors = [409]

    def get_queryset(self) -> models.QuerySet[RolloutTenant]:
        if getattr(self, "swagger_fake_view", False):
            return self.queryset
        return self._rollout().tenants.select_related("tenant")

    @extend_schema(responses=TurnSerializer)
    def update(self, request: Request, pk: int, slug: str) -> Response:
        """Make a tenant move first or last."""
        given = self.get_serializer(data=request.data)
        given.is_valid(raise_exception=True)
        tenant = get_object_or_404(Tenant, slug=slug)
        turn, _ = self._open().tenants.update_or_create(
            tenant=tenant, defaults={"turn": given.validated_data["turn"]}
        )
        return Response(self.get_serializer(turn).data)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, pk: int, slug: str) -> Response:
        """Let the weight decide again when the tenant moves."""
        get_object_or_404(self._open().tenants, tenant__slug=slug).delete()
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _rollout(self) -> Rollout:
        return get_object_or_404(Rollout, pk=self.kwargs["pk"])

    def _open(self) -> Rollout:
        rollout = self._rollout()
        if not rollout.is_open:
            raise IllegalRolloutStep(f"This rollout is {rollout.state}.")
        return rollout
