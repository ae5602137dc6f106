"""A tenant's requests: the list, newest first, with its filters in the URL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.http import urlencode
from django.views.decorators.http import require_GET

from frontend.pages import tenant_page
from frontend.times import Moment
from tenants.models import Adapter, ApiKey, BaseModel, Tenant, UsageEvent
from tenants.models.usage import Mark, Outcome, UsageEventQuerySet
from tenants.permissions import Caller, Permission

PAGE = 50
HORIZON = 10_000
"""Most requests that one page scans: 5 to 30 ms in PostgreSQL if none of them matches."""
PERIODS = {
    "1h": ("Last hour", timedelta(hours=1)),
    "24h": ("Last 24 hours", timedelta(days=1)),
    "7d": ("Last 7 days", timedelta(days=7)),
    "30d": ("Last 30 days", timedelta(days=30)),
}
MAX_CHOICES = 200
"""Most keys (the newest) and models to offer as choices."""
RARE = ("since", "until", "ttft", "total")
"""Filters that are collapsed."""
NARROWING = ("model", "key", "outcome", "ttft", "total")
"""Filters other than those of time."""
PAST = frozenset({"period", "since"})
"""Filters that every future request passes."""
NOT_LIVE = frozenset({"before", "until", "id"})
"""Filters with which a list cannot get new requests."""
MARK = re.compile(r"(\d{1,17})-([A-Za-z0-9_-]{0,64})")
"""A position in the list: microseconds since 1970, and a request id."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RequestFilter(forms.Form):
    """The list's filter. If an id is given, the other filters are ignored."""

    model = forms.CharField(
        required=False,
        max_length=255,
        label="Model or adapter",
        widget=forms.TextInput({"type": "search", "list": "models"}),
    )
    key: forms.Field = forms.ModelChoiceField(
        ApiKey.objects.none(), required=False, label="API key", empty_label="Any key"
    )
    outcome = forms.ChoiceField(required=False, choices=[("", "Any outcome"), *Outcome.choices])
    period = forms.ChoiceField(
        required=False, choices=[(name, title) for name, (title, _) in PERIODS.items()]
    )
    id = forms.CharField(
        required=False,
        max_length=80,
        label="Request id",
        widget=forms.TextInput({"type": "search", "placeholder": "req_…"}),
    )
    since = Moment(required=False, label="From, UTC")
    until = Moment(required=False, label="Before, UTC")
    ttft = forms.FloatField(required=False, min_value=0, label="First token after, s")
    total = forms.FloatField(required=False, min_value=0, label="Took at least, s")
    periods = PERIODS
    usual = "24h"
    """The default period."""
    longer = "30d"
    """The period suggested on an empty page."""

    def __init__(self, given: Any, keys: QuerySet[ApiKey] | None = None) -> None:
        """`keys` are the choices; None if there is no filter by key."""
        super().__init__({"period": self.usual} | given.dict())
        if keys is None:
            del self.fields["key"]
            return
        field = self.fields["key"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = keys
        # The queryset limits what may be chosen, the choices what is offered.
        chosen = given.get("key", "")
        offered = list(keys[:MAX_CHOICES])
        if chosen.isdecimal() and int(chosen) not in {key.pk for key in offered}:
            offered += keys.filter(pk=int(chosen))
        field.widget.choices = [("", field.empty_label), *((key.pk, key.name) for key in offered)]

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = self.cleaned_data
        since, until = given.get("since"), given.get("until")
        if since and until and until <= since:
            raise ValidationError({"until": "This is not after the time before it."})
        return given

    def window(self, now: datetime) -> tuple[datetime, datetime | None]:
        """Start, and end (exclusive; None: now), of a valid form's period."""
        given = self.cleaned_data
        until: datetime | None = given["until"]
        _, length = self.periods[given["period"] or self.usual]
        return given["since"] or (until or now) - length, until

    @property
    def common(self) -> list[forms.BoundField]:
        return [field for field in self if field.name not in RARE]

    @property
    def rare(self) -> list[forms.BoundField]:
        return [self[name] for name in RARE]

    @property
    def more(self) -> bool:
        """Whether one of the collapsed filters is used."""
        return any(self.data.get(name) for name in RARE)

    @property
    def narrows(self) -> bool:
        """Whether a valid form excludes some requests of its period."""
        return any(self.cleaned_data.get(name) for name in NARROWING)

    def narrow(self, events: UsageEventQuerySet) -> UsageEventQuerySet:
        """The events that match a valid form, regardless of its period."""
        given = self.cleaned_data
        if name := given["model"]:
            events = events.of_model(name)
        if key := given.get("key"):
            events = events.filter(key=key)
        if outcome := given["outcome"]:
            events = events.that(Outcome(outcome))
        if given["ttft"]:
            events = events.filter(ttft_s__gte=given["ttft"])
        return events.filter(total_s__gte=given["total"]) if given["total"] else events


@dataclass(frozen=True, slots=True)
class Found:
    """One page of the list."""

    events: Sequence[UsageEvent] = ()
    next: str = ""
    """The mark after which the next page begins; empty at the end."""
    looked_to: datetime | None = None
    """The end of the scanned range, if the scan stopped before the end of the list."""


def search(
    form: RequestFilter,
    events: UsageEventQuerySet,
    everything: UsageEventQuerySet,
    before: str = "",
    *,
    most: int = HORIZON,
) -> Found:
    """The page of `events` before a mark that match a valid form, scanning at most `most` rows.

    `everything` is the superset of `events` that the index can select by itself.
    """
    if id := form.cleaned_data["id"]:
        return Found(list(events.named(id)))
    window, mark = form.window(timezone.now()), mark_of(before)
    found = form.narrow(events).between(*window).newest(mark)
    horizon = None
    if form.narrows or events is not everything:
        horizon = everything.between(*window).newest(mark).horizon(most)
    rows = list((found.filter(started_at__gte=horizon) if horizon else found)[: PAGE + 1])
    if len(rows) > PAGE:
        return Found(rows[:PAGE], text_of(rows[PAGE - 1].mark))
    return Found(rows, text_of(Mark(horizon)) if horizon else "", horizon)


def mark_of(text: str) -> Mark | None:
    """Parse a mark from the URL; None if it is invalid."""
    form = MARK.fullmatch(text)
    return Mark(EPOCH + timedelta(microseconds=int(form[1])), form[2]) if form else None


def text_of(mark: Mark) -> str:
    """A mark as it appears in URLs."""
    return f"{(mark.started_at - EPOCH) // timedelta(microseconds=1)}-{mark.id}"


@dataclass(frozen=True, slots=True)
class Row:
    """One request, with its tenant's slug and its key, which may be gone."""

    event: UsageEvent
    slug: str
    key: ApiKey | None


def rows_of(events: Iterable[UsageEvent], tenant: Tenant | None = None) -> list[Row]:
    """Rows of the list; without `tenant`, events must have selected theirs."""
    found = list(events)
    keys = ApiKey.objects.in_bulk({event.key_id for event in found})
    return [Row(event, (tenant or event.tenant).slug, keys.get(event.key_id)) for event in found]


def query_of(request: HttpRequest, **changed: str) -> str:
    """The URL's query without its position in the list, with some values changed."""
    query = request.GET.copy()
    query.pop("before", None)
    for name, value in changed.items():
        query[name] = value
    return query.urlencode()


def context_of(request: HttpRequest, form: RequestFilter, found: Found) -> dict[str, Any]:
    """Template context of the list, except for the rows."""
    return {
        "form": form,
        "next": query_of(request, before=found.next) if found.next else "",
        "looked_to": found.looked_to,
        "filtered": any(form.cleaned_data.get(name) for name in (*NARROWING, *RARE, "id")),
        "first": "before" not in request.GET,
        "live": live_query(request, form),
        "query": query_of(request),
        "horizon": HORIZON,
    }


def live_query(request: HttpRequest, form: RequestFilter) -> str | None:
    """The filter for live requests; None if a page with this form gets none."""
    if form.errors or not NOT_LIVE.isdisjoint(name for name, value in request.GET.items() if value):
        return None
    asked = {name: request.GET.get(name) for name in form.fields if name not in PAST}
    return urlencode({name: value for name, value in asked.items() if value})


def form_of(request: HttpRequest, caller: Caller) -> RequestFilter:
    """The filter form, with the keys whose requests the caller may see."""
    keys = caller.tenant.keys.all()
    if not caller.may(Permission.READ_USAGE):
        keys = keys.filter(created_by=caller.user)
    return RequestFilter(request.GET, keys)


@require_GET
@tenant_page(Permission.READ_OWN_USAGE)
def requests(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The list: of the whole tenant or of the caller's own keys, depending on permissions."""
    tenant, whole = caller.tenant, caller.may(Permission.READ_USAGE)
    form = form_of(request, caller)
    found = Found()
    if form.is_valid():
        everything = UsageEvent.objects.filter(tenant=tenant)
        events = everything if whole else caller.events()
        found = search(form, events, everything, request.GET.get("before", ""))
    context = context_of(request, form, found) | {
        "rows": rows_of(found.events, tenant),
        "own": not whole,
        "never": not found.events and not caller.usage().exists(),
        "models": models_of(tenant),
        "may_create": caller.may(Permission.EDIT_OWN_KEYS),
        "base_url": f"{settings.API_URL}/v1",
    }
    return render(request, "requests.html", context, status=422 if form.errors else 200)


def models_of(tenant: Tenant | None) -> list[str]:
    """Model names to suggest: the tenant's adapters and the base models."""
    adapters = Adapter.objects.filter(tenant=tenant) if tenant else Adapter.objects.none()
    names = adapters.values_list("name", flat=True).union(
        BaseModel.objects.values_list("name", flat=True)
    )
    return list(names[:MAX_CHOICES])
