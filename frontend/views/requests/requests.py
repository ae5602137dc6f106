"""A tenant's requests: the list, newest first, with its filters in the URL."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
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
from tenants.listing import HORIZON, OUTCOMES, Entry, Filter, Found, Where, mark_of
from tenants.models import Adapter, ApiKey, BaseModel, Tenant
from tenants.models.listed import Outcome
from tenants.permissions import Caller, Permission

PAGE = 50
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
    outcome = forms.ChoiceField(
        required=False,
        choices=[("", "Any outcome"), *OUTCOMES],
    )
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
    def filter(self) -> Filter:
        """What a valid form leaves out, regardless of its period."""
        given = self.cleaned_data
        key = given.get("key")
        return Filter(
            given["model"],
            key and key.pk,
            given["outcome"],
            given["ttft"] or None,
            given["total"] or None,
        )


def search(form: RequestFilter, where: Where, before: str = "", *, most: int = HORIZON) -> Found:
    """The page of the list before a mark that match a valid form, scanning at most `most` rows of
    each kind."""
    if id := form.cleaned_data["id"]:
        return where.named(id)
    window = form.window(timezone.now())
    return where.page(form.filter, window, mark_of(before), size=PAGE, most=most)


@dataclass(frozen=True, slots=True)
class Row(Entry):
    """One request, with its tenant's slug and its key, which may be gone."""

    slug: str
    key: ApiKey | None

    @property
    def look(self) -> str:
        """The status's CSS class."""
        if self.outcome == Outcome.CANCELLED:
            return ""
        return "ok" if self.status < 400 else "warn" if self.status < 500 else "bad"


def rows_of(found: Found, tenant: Tenant | None = None) -> list[Row]:
    """Rows of the list; without `tenant`, requests must have selected theirs."""
    keys = ApiKey.objects.in_bulk({event.key_id for event in found.events})
    return [
        Row(one.event, one.error, (tenant or one.event.tenant).slug, keys.get(one.event.key_id))
        for one in found.entries()
    ]


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
        found = search(form, Where.of(caller), request.GET.get("before", ""))
    context = context_of(request, form, found) | {
        "rows": rows_of(found, tenant),
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
