"""Splits of an alias between its version and a candidate."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as InvalidFields
from django.db import models
from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.exceptions import ValidationError
from rest_framework.fields import get_error_detail
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.api.endpoints.adapters.adapters import EDIT, READ, AdapterPart
from tenants.api.serializers.splits import (
    SplitPlanSerializer,
    SplitSerializer,
    SplitWeightSerializer,
)
from tenants.evals import required
from tenants.models import ApiKey, Split, SplitState
from tenants.models.audit import actor_of


class SplitHistory(AdapterPart, mixins.ListModelMixin, GenericViewSet[Split]):
    """The adapter's splits, the latest first; only the latest ones are kept."""

    needs = {"list": READ}
    queryset = Split.objects.none()
    serializer_class = SplitSerializer
    filter_backends = []

    def get_queryset(self) -> models.QuerySet[Split]:
        return shown(self.adapter().splits.all())


class AliasSplit(AdapterPart, GenericViewSet[Split]):
    """The split of an alias. A worker reads its requests once a minute, and raises the weight, ends
    it, or rolls it back by itself; gateways follow within a second."""

    needs = {
        "retrieve": READ, "create": EDIT, "weigh": EDIT, "pause": EDIT, "resume": EDIT,
        "promote": EDIT, "stop": EDIT, "evaluate": EDIT,
    }  # fmt: skip
    queryset = Split.objects.none()
    serializer_class = SplitSerializer
    filter_backends = []
    bodiless = ["pause", "resume", "promote", "stop", "evaluate"]
    further_errors = [409]

    def get_queryset(self) -> models.QuerySet[Split]:
        return shown(self.adapter().splits.filter(alias=self.kwargs["alias"]))

    @extend_schema(operation_id="adapters_aliases_split_retrieve")
    def retrieve(self, request: Request, name: str, alias: str) -> Response:
        """The split that runs, else the last one."""
        if (found := self.get_queryset().first()) is None:
            raise Http404
        return Response(self.get_serializer(found).data)

    @extend_schema(request=SplitPlanSerializer, responses={201: SplitSerializer})
    def create(self, request: Request, name: str, alias: str) -> Response:
        """Start a split: from now on a share of the alias's requests gets the candidate. If the
        alias requires an eval of which the candidate has no finished run, one is started too."""
        plan = SplitPlanSerializer(data=request.data)
        plan.is_valid(raise_exception=True)
        fields, adapter = dict(plan.validated_data), self.adapter()
        pointer = get_object_or_404(adapter.aliases, name=alias)
        number = fields.pop("version")
        candidate = adapter.versions.filter(number=number).first()
        if candidate is None:
            raise ValidationError({"version": f"{adapter.name} has no version {number}."})
        if (key_id := fields.pop("shadow_key", None)) is not None:
            fields["shadow_key"] = self._key(key_id)
        caller = self.caller
        try:
            split = required.start_split(
                pointer, candidate, caller, actor_of(request, caller.key), **fields
            )
        except InvalidFields as error:
            raise ValidationError(get_error_detail(error)) from error
        return Response(self.get_serializer(split).data, status.HTTP_201_CREATED)

    @extend_schema(request=SplitWeightSerializer, responses=SplitSerializer)
    def weigh(self, request: Request, name: str, alias: str) -> Response:
        """Set the weight. The next step of the plan is the next higher one."""
        given = SplitWeightSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        split = self._open()
        split.set_weight(given.validated_data["weight"], "The weight was set.")
        return Response(self.get_serializer(split).data)

    @extend_schema(request=None, responses=SplitSerializer)
    def pause(self, request: Request, name: str, alias: str) -> Response:
        """Keep the weight, and decide nothing until it is resumed."""
        split = self._open()
        split.pause()
        return Response(self.get_serializer(split).data)

    @extend_schema(request=None, responses=SplitSerializer)
    def resume(self, request: Request, name: str, alias: str) -> Response:
        """Decide again."""
        split = self._open()
        split.resume()
        return Response(self.get_serializer(split).data)

    @extend_schema(request=None, responses=SplitSerializer)
    def promote(self, request: Request, name: str, alias: str) -> Response:
        """Point the alias at the candidate, and end the split."""
        split = self._open()
        split.promote("Promoted by request.")
        return Response(self.get_serializer(split).data)

    @extend_schema(request=None, responses=SplitSerializer)
    def stop(self, request: Request, name: str, alias: str) -> Response:
        """End the split: the alias's version gets all requests again."""
        split = self._open()
        split.end(SplitState.STOPPED, "Stopped by request.")
        return Response(self.get_serializer(split).data)

    def _key(self, id: int) -> ApiKey:
        key = self.caller.tenant.keys.with_text().filter(pk=id).first()
        if key is None:
            raise ValidationError({"shadow_key": f"There is no key {id}."})
        return key

    @extend_schema(request=None, responses=SplitSerializer)
    def evaluate(self, request: Request, name: str, alias: str) -> Response:
        """Run the eval that the alias requires on the candidate, again if an earlier run failed.
        Its rows are those of the eval's last completed run."""
        split = self._open()
        required.evaluate(split, self.caller, actor_of(request, self.caller.key))
        return Response(self.get_serializer(split).data)

    def _open(self) -> Any:
        return get_object_or_404(self.get_queryset().filter(ended_at=None))


def shown(splits: models.QuerySet[Split]) -> models.QuerySet[Split]:
    """With what is shown of them."""
    return splits.select_related("adapter", "stable", "candidate", "created_by", "eval_run").defer(
        "tests"
    )
