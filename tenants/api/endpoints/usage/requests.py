"""A tenant's requests, newest first: those in the ledger, and refused ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError as InvalidValue
from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.periods import moment, shown
from tenants.api.permissions import TenantView
from tenants.api.serializers.history import OneRequestSerializer, RequestsSerializer
from tenants.listing import OUTCOMES, Filter, ListEntry, ScoreRange, Where, Window, mark_of
from tenants.models.annotations import (
    MAX_NUMBER,
    MAX_TAGS,
    WORD,
    WORD_RULE,
    ScoreValue,
    scores_of,
)
from tenants.models.usage.listed import Mark
from tenants.permissions import Permission

USUAL = timedelta(days=1)
SIZE, MOST = 50, 200
NAMES = [name for name, _ in OUTCOMES]
MAX_NAME = 255
BOUNDS = ("score_min", "score_max")
PARAMETERS = [
    OpenApiParameter("model", str, description="Name of an adapter or model, as requests had it."),
    OpenApiParameter("key", int, description="Id of the API key."),
    OpenApiParameter("engine", str, description="Id of the engine that answered."),
    OpenApiParameter("reason", str, description="A finish reason, or an error's code."),
    OpenApiParameter("outcome", str, enum=NAMES, description="`wrong`: `failed` or `refused`."),
    OpenApiParameter("tags", str, description="Tags, separated by commas: requests have all."),
    OpenApiParameter("score", str, description="Name of a score that requests have."),
    OpenApiParameter(
        "score_value",
        str,
        description="Value of that score: a number, `true`, `false` or a category.",
    ),
    OpenApiParameter("score_min", float, description="Least value of that score."),
    OpenApiParameter("score_max", float, description="Greatest value of that score."),
    OpenApiParameter(
        "start", datetime, description="Start of the period. Default: one day before the end."
    ),
    OpenApiParameter("end", datetime, description="Exclusive end of the period. Default: now."),
    OpenApiParameter("before", str, description="Cursor of the page, as contained in `next`."),
    OpenApiParameter(
        "limit", int, description=f"Number of requests per page. Default: {SIZE}, maximum: {MOST}."
    ),
]


class _Requests(TenantView):
    def _scores(self, entries: Sequence[ListEntry]) -> dict[str, Any]:
        """Context of the serializers."""
        return {"scores": scores_of(self.caller.tenant, [one.event.id for one in entries])}


class RequestList(_Requests):
    """The requests that ended, including refused ones with their errors. Of more than 20 similar
    refused ones in a minute the rest are only counted, in the metrics."""

    needs = {"page": Permission.READ_OWN_USAGE}
    parameters = [parameter.name for parameter in PARAMETERS]
    action = "page"  # not "list", for which drf-spectacular assumes another form of pagination

    @extend_schema(
        parameters=PARAMETERS, responses={200: RequestsSerializer}, operation_id="requests_list"
    )
    def get(self, request: Request) -> Response:
        params = request.query_params.dict()
        found = Where.of(self.caller).page(
            _filter(params), _window(params), _before(params), size=_size(params)
        )
        address = None
        if found.next:
            query = request.query_params.copy()
            query["before"] = found.next
            address = request.build_absolute_uri(f"{request.path}?{query.urlencode()}")
        page: dict[str, Any] = {"next": address, "results": found.entries()}
        return Response(RequestsSerializer(page, context=self._scores(page["results"])).data)


class OneRequest(_Requests):
    """One request, by its id in any form, with its attempts on engines."""

    needs = {"retrieve": Permission.READ_OWN_USAGE}
    action = "retrieve"

    @extend_schema(responses={200: OneRequestSerializer}, operation_id="requests_retrieve")
    def get(self, request: Request, request_id: str) -> Response:
        entries = Where.of(self.caller).named(request_id).entries()
        if not entries:
            raise Http404
        return Response(OneRequestSerializer(entries[0], context=self._scores(entries)).data)


def _filter(params: dict[str, str]) -> Filter:
    outcome = params.get("outcome", "")
    if outcome and outcome not in NAMES:
        raise ValidationError({"outcome": f"{outcome[:64]!r} is not one of {', '.join(NAMES)}."})
    names = {name: params.get(name, "") for name in ("model", "engine", "reason")}
    for name, value in names.items():
        if "\0" in value or len(value) > MAX_NAME:
            raise ValidationError({name: f"It must have at most {MAX_NAME} characters."})
    return Filter(
        names["model"],
        _number(params, "key", 10**18),
        outcome,
        engine=names["engine"],
        reason=names["reason"],
        tags=_tags(params),
        score=_score(params),
    )


def _tags(params: dict[str, str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(params["tags"].split(","))) if "tags" in params else ()
    if len(names) > MAX_TAGS:
        raise ValidationError({"tags": f"{len(names)} tags; at most {MAX_TAGS} are allowed."})
    if not all(WORD.fullmatch(name) for name in names):
        raise ValidationError({"tags": WORD_RULE})
    return names


def _score(params: dict[str, str]) -> ScoreRange | None:
    name, value = params.get("score"), _score_value(params)
    least, most = (_decimal(params, one) for one in BOUNDS)
    bounded = (least, most) != (None, None)
    if bounded and value:
        raise ValidationError({"score_value": "Use either a value or bounds."})
    if name is None:
        if bounded or value:
            raise ValidationError({"score": "Name the score that the value is of."})
        return None
    if not WORD.fullmatch(name):
        raise ValidationError({"score": WORD_RULE})
    return ScoreRange(name, least, most, value)


def _score_value(params: dict[str, str]) -> str:
    value = params.get("score_value", "")
    try:
        if value:
            ScoreValue.typed(value)
    except InvalidValue as invalid:
        raise ValidationError({"score_value": invalid.messages}) from None
    return value


def _decimal(params: dict[str, str], name: str) -> float | None:
    if (text := params.get(name)) is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not -MAX_NUMBER <= number <= MAX_NUMBER:
        rule = f"{text[:64]!r} is not a number from -{MAX_NUMBER:g} to {MAX_NUMBER:g}."
        raise ValidationError({name: rule})
    return number


def _window(params: dict[str, str]) -> Window:
    end = moment(params, "end")
    start = moment(params, "start") or (end or timezone.now()) - USUAL
    if end is not None and start >= end:
        raise ValidationError({"end": f"{shown(end)} is not after the start, {shown(start)}."})
    return start, end


def _before(params: dict[str, str]) -> Mark | None:
    text = params.get("before")
    mark = mark_of(text) if text else None
    if text and mark is None:
        raise ValidationError({"before": "`before` must be a cursor from `next`."})
    return mark


def _size(params: dict[str, str]) -> int:
    return min(_number(params, "limit", 10**9) or SIZE, MOST)


def _number(params: dict[str, Any], name: str, below: int) -> int | None:
    text = params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19 and 0 < int(text) < below):
        raise ValidationError({name: f"{text[:64]!r} is not a positive integer."})
    return int(text)
