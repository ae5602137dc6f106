"""A tenant's requests: the list, newest first, with its filters in the URL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.forms.utils import flatatt
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.views.decorators.http import require_GET

from frontend.formats import duration
from frontend.lists import MAX_DIGITS, address
from frontend.pages import as_file, tenant_page
from frontend.periods import PERIODS
from frontend.templatetags.lorikeet import options
from frontend.times import MinuteField
from frontend.views.requests.counts import counts
from inference.errors import BY_CODE
from tenants.billing.money import amount
from tenants.content.datasets import MAX_REQUESTS
from tenants.fleet.gateways import gateways
from tenants.listing import (
    HORIZON,
    OUTCOMES,
    Filter,
    FoundRows,
    ListEntry,
    ScoreRange,
    Where,
    Words,
    mark_of,
)
from tenants.models import Adapter, AdapterVersion, ApiKey, BaseModel, SavedView, Tenant
from tenants.models.annotations import MAX_TAGS, MAX_WORD, ScoreValue, is_word, scores_of
from tenants.models.usage.ledger import COMMON
from tenants.models.usage.listed import REQUEST_ID, Outcome
from tenants.permissions import Caller, Permission

PAGE = 50
TITLES = {"1h": "Last hour"} | {
    name: f"Last {PERIODS[name].title}" for name in ("24h", "7d", "30d")
}
"""The titles of the periods."""
MAX_CHOICES = 200
"""Maximum number of keys (the newest) and of models offered as choices."""
ANNOTATED = ("tags", "score", "value", "least", "most")
"""Filters by tags and scores."""
NARROWING = (
    "q", "model", "key", "member", "outcome", "reason", "engine", "ttft", "total", *ANNOTATED,
)  # fmt: skip
"""Filters other than those of time."""
PAST = frozenset({"period", "since"})
"""Filters that every future request passes."""
NOT_LIVE = frozenset({"before", "until"})
"""Filters with which a list cannot get new requests."""
TTFTS_S = (0.2, 0.5, 1, 2, 5, 10)
TOTALS_S = (1, 2, 5, 10, 30, 60)
"""Choices of the filters by time."""
REASONS_OFFERED = [*COMMON, *sorted(BY_CODE.keys() - set(COMMON))]
"""Choices of the filter by finish reason or error."""
WHOLE_ID = 32
"""Characters of a request's id; a search text as long is looked up in all periods."""
KEYS_FOUND = 50
"""Maximum number of keys that a search by name takes into account."""
CSV_PAGE, CSV_ROWS = 1_000, 20_000
"""Rows of the CSV that are read at once, and its maximum."""
COLUMNS = (
    "id", "started_at", "status", "outcome", "code", "message", "model", "adapter", "base_model",
    "key_id", "key", "engine", "prompt_tokens", "cached_tokens", "completion_tokens",
    "reasoning_tokens", "queue_s", "load_s", "ttft_s", "total_s", "attempt", "cost",
    "tags", "scores",
)  # fmt: skip


class Chip(forms.Select):
    """Rendered at once: Django renders a template for each option, and there are hundreds."""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        given = self.build_attrs(self.attrs, {"name": name, **(attrs or {})})
        (chosen,) = self.format_value(value)
        listed = options([(str(one), str(title)) for one, title in self.choices], chosen)
        return format_html("<select{}>{}</select>", flatatt(given), listed)


def chip(choices: Sequence[tuple[str, str]] = ()) -> Chip:
    """A select that looks like a chip."""
    return Chip({"class": "chip"}, choices)


def at_least(name: str, choices: Sequence[float]) -> forms.FloatField:
    """A time in seconds. The select offers some; the URL may have any."""
    offered = [("", name), *((f"{one:g}", f"{name} {duration(one)}") for one in choices)]
    return forms.FloatField(required=False, min_value=0, label=name, widget=chip(offered))


class RequestFilter(forms.Form):
    """The list's filter. If a whole id is searched for, the other filters are ignored."""

    q = forms.CharField(
        required=False,
        max_length=100,
        label="Search",
        widget=forms.TextInput(
            {"type": "search", "placeholder": "Request ID, key, model or error text"}
        ),
    )
    period = forms.ChoiceField(
        required=False,
        choices=list(TITLES.items()),
        widget=chip(),
    )
    outcome = forms.ChoiceField(
        required=False, choices=[("", "Status: all"), *OUTCOMES], label="Status", widget=chip()
    )
    model = forms.CharField(required=False, max_length=255, label="Model", widget=chip())
    key: forms.Field = forms.ModelChoiceField(
        ApiKey.objects.none(), required=False, label="Key", empty_label="Key", widget=chip()
    )
    member: forms.Field = forms.ChoiceField(required=False, label="Member", widget=chip())
    reason = forms.ChoiceField(
        required=False,
        choices=[("", "Reason"), *((one, one) for one in REASONS_OFFERED)],
        label="Finish reason or error",
        widget=chip(),
    )
    engine = forms.CharField(required=False, max_length=64, label="Engine", widget=chip())
    ttft = at_least("TTFT over", TTFTS_S)
    total = at_least("Total over", TOTALS_S)
    tags = forms.CharField(
        required=False,
        max_length=MAX_TAGS * (MAX_WORD + 1),
        label="Tags",
        widget=forms.TextInput({"placeholder": "good, checked"}),
    )
    score = forms.CharField(required=False, label="Score", validators=[is_word])
    value = forms.CharField(
        required=False,
        max_length=MAX_WORD,
        label="Value",
        widget=forms.TextInput({"placeholder": "good, true or 0.5"}),
    )
    least = forms.FloatField(required=False, label="At least")
    most = forms.FloatField(required=False, label="At most")
    since = MinuteField(required=False, label="From, UTC")
    until = MinuteField(required=False, label="Before, UTC")
    usual = "24h"
    """The default period."""
    longer = "30d"
    """The period suggested on an empty page."""
    annotated = True
    """Whether there are filters by tags and scores."""

    def __init__(
        self,
        given: Any,
        keys: QuerySet[ApiKey] | None = None,
        models: Sequence[str] = (),
        engines: Sequence[str] = (),
        *,
        by_member: bool = False,
    ) -> None:
        """`keys` are the choices; None if there is no filter by key."""
        # Older links have the id in a parameter of its own.
        super().__init__({"period": self.usual, "q": given.get("id", "")} | given.dict())
        self._keys = keys
        if not self.annotated:
            for name in ANNOTATED:
                del self.fields[name]
        self.offered: dict[int | None, str] = {}
        """The names of the keys that can be chosen, by their ids."""
        self._offer("model", [("", "Model"), *((name, name) for name in models)])
        self._offer("engine", [("", "Engine"), *((name, name) for name in engines)])
        for name in ("ttft", "total"):
            self._offer(name, self.fields[name].widget.choices)
        if by_member and keys is not None:
            self.fields["member"].choices = _members(keys)  # type: ignore[attr-defined]
        else:
            del self.fields["member"]
        if keys is None:
            del self.fields["key"]
            return
        field = self.fields["key"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = keys
        # The queryset limits what may be chosen, the choices what is offered.
        chosen = given.get("key", "")
        names = keys.values_list("pk", "name")
        self.offered |= dict(names[:MAX_CHOICES])
        if chosen.isdecimal() and len(chosen) <= MAX_DIGITS and int(chosen) not in self.offered:
            self.offered |= dict(names.filter(pk=int(chosen)))
        field.widget.choices = [("", field.empty_label), *self.offered.items()]

    def _offer(self, name: str, choices: Sequence[tuple[str, str]]) -> None:
        """Offer these choices, and the current value."""
        chosen = self.data.get(name, "")
        known = chosen in {value for value, _ in choices}
        title = f"{self.fields[name].label} {chosen} s" if name in ("ttft", "total") else chosen
        more = [] if known else [(chosen, title)]
        self.fields[name].widget.choices = [*choices, *more]

    def clean_tags(self) -> tuple[str, ...]:
        """The tags, which are separated by commas or spaces."""
        names = tuple(dict.fromkeys(self.cleaned_data["tags"].replace(",", " ").split()))
        if len(names) > MAX_TAGS:
            raise ValidationError(f"There are {len(names)} tags; at most {MAX_TAGS} are allowed.")
        for name in names:
            is_word(name)
        return names

    def clean_value(self) -> str:
        value: str = self.cleaned_data["value"]
        if value:
            ScoreValue.typed(value)
        return value

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = self.cleaned_data
        bounded = [given.get("least"), given.get("most")] != [None, None]
        if bounded and given.get("value"):
            raise ValidationError({"value": "Use either a value or bounds."})
        if (
            (bounded or given.get("value"))
            and not given.get("score")
            and "score" not in self.errors
        ):
            raise ValidationError({"score": "Name the score that the value is of."})
        since, until = given.get("since"), given.get("until")
        if since and until and until <= since:
            raise ValidationError({"until": "This must be after the start."})
        return given

    def window(self, now: datetime) -> tuple[datetime, datetime | None]:
        """Start, and end (exclusive; None: now), of a valid form's period."""
        given = self.cleaned_data
        until: datetime | None = given["until"]
        period = PERIODS[given["period"] or self.usual]
        start = until - period.length if until else period.start(now)
        return given["since"] or start, until

    @property
    def period_title(self) -> str:
        """The period of a valid form, for use within a sentence."""
        if self.exact:
            return "this time"
        return f"the {TITLES[self.cleaned_data['period'] or self.usual].lower()}"

    @property
    def chips(self) -> list[forms.BoundField]:
        return [field for field in self if isinstance(field.field.widget, Chip)]

    @property
    def times(self) -> list[forms.BoundField]:
        return [self["since"], self["until"]]

    @property
    def annotations(self) -> list[forms.BoundField]:
        return [self[name] for name in ANNOTATED if name in self.fields]

    @property
    def annotations_on(self) -> bool:
        """Whether requests are filtered by tags or scores."""
        return any(self.data.get(field.name) for field in self.annotations)

    @property
    def exact(self) -> bool:
        """Whether times are given, instead of a period."""
        return bool(self.data.get("since") or self.data.get("until"))

    @property
    def id(self) -> str:
        """The whole id that is searched for; empty if none is."""
        form = REQUEST_ID.fullmatch(self.cleaned_data["q"])
        return form[1] if form and len(form[1]) >= WHOLE_ID else ""

    @cached_property
    def filter(self) -> Filter:
        """The filter of a valid form, without its period."""
        given = self.cleaned_data
        key = given.get("key")
        return Filter(
            given["model"],
            key and key.pk,
            given["outcome"],
            int(given["member"]) if given.get("member") else None,
            given["engine"],
            given["reason"],
            given["ttft"] or None,
            given["total"] or None,
            self._words(given["q"]),
            given.get("tags", ()),
            self._score(given),
        )

    @staticmethod
    def _score(given: Mapping[str, Any]) -> ScoreRange | None:
        name = given.get("score")
        return ScoreRange(name, given["least"], given["most"], given["value"]) if name else None

    def _words(self, text: str) -> Words | None:
        if not text:
            return None
        named = Q(prefix=text.removeprefix("lk_"))
        if self._keys is not None:
            named |= Q(name__icontains=text)
        keys = (ApiKey.objects.all() if self._keys is None else self._keys).filter(named)
        return Words(text, list(keys.values_list("pk", flat=True)[:KEYS_FOUND]))


def _members(keys: QuerySet[ApiKey]) -> list[tuple[str, str]]:
    """The members who made these keys, as choices."""
    made = keys.exclude(created_by=None).order_by("created_by__username")
    named = made.values_list("created_by", "created_by__username").distinct()
    return [("", "Member"), *((str(pk), name) for pk, name in named[:MAX_CHOICES])]


def search(
    form: RequestFilter,
    where: Where,
    before: str = "",
    *,
    size: int = PAGE,
    most: int = HORIZON,
) -> FoundRows:
    """The page of requests before a mark that match a valid form, scanning at most `most` rows of
    each kind."""
    if form.id and (one := where.named(form.id)).events:
        return one
    window = form.window(timezone.now())
    return where.page(form.filter, window, mark_of(before), size=size, most=most)


@dataclass(frozen=True, slots=True)
class RequestRow(ListEntry):
    """One request, with its tenant's slug, the name of its key, unless that is deleted, and
    its version's number."""

    slug: str
    key: str | None
    version: int | None

    @property
    def url(self) -> str:
        """URL of its page."""
        return f"{address('requests', self.slug)}/{self.event.id}"

    @property
    def tenant_url(self) -> str:
        return address("operate_tenants-edit", self.slug)

    @property
    def look(self) -> str:
        """The status's CSS class."""
        return look_of(self)

    @property
    def attempts(self) -> int:
        """The number of its attempts, as far as that is known; 0 if it reached no engine."""
        return self.billed.attempt if self.billed else 0


def look_of(entry: ListEntry) -> str:
    """The CSS class of a request's status."""
    if entry.outcome == Outcome.CANCELLED:
        return ""
    return "ok" if entry.status < 400 else "warn" if entry.status < 500 else "bad"


def rows_of(
    found: FoundRows,
    tenant: Tenant | None = None,
    known: Mapping[int | None, str] = MappingProxyType({}),
) -> list[RequestRow]:
    """Rows of the list; without `tenant`, requests must have selected theirs. Names of keys that
    are `known`, by the keys' ids, are not looked up."""
    keys = dict(known)
    if unknown := {event.key_id for event in found.events} - keys.keys():
        keys.update(ApiKey.objects.filter(pk__in=unknown).values_list("pk", "name"))
    versions = {event.version_id for event in found.events if event.version_id}
    named = AdapterVersion.objects.filter(pk__in=versions).values_list("pk", "number")
    numbers: dict[int | None, int] = {}
    if versions:
        numbers.update(named)
    return [
        RequestRow(
            one.event,
            one.error,
            (tenant or one.event.tenant).slug,
            keys.get(one.event.key_id),
            numbers.get(one.event.version_id),
        )
        for one in found.entries()
    ]


def query_of(request: HttpRequest, **changed: str) -> str:
    """The URL's query without its position in the list, with some values changed."""
    query = request.GET.copy()
    query.pop("before", None)
    for name, value in changed.items():
        query[name] = value
    for name in [name for name, value in query.items() if not value]:
        del query[name]
    return query.urlencode()


def context_of(request: HttpRequest, form: RequestFilter, found: FoundRows) -> dict[str, Any]:
    """Template context of the list, except for the rows."""
    return {
        "form": form,
        "next": query_of(request, before=found.next) if found.next else "",
        "searched_to": found.searched_to,
        "filtered": any(form.cleaned_data.get(name) for name in (*NARROWING, "since", "until")),
        "first": "before" not in request.GET,
        "live": live_query(request, form),
        "query": query_of(request),
        "failed_query": query_of(request, outcome=Outcome.FAILED),
        "refused_query": query_of(request, outcome=Outcome.REFUSED),
        "during_query": query_of(request, period="", since="", until=""),
        "horizon": HORIZON,
    }


def live_query(request: HttpRequest, form: RequestFilter) -> str | None:
    """The filter for live requests; None if a page with this form gets none."""
    if form.errors or not NOT_LIVE.isdisjoint(name for name, value in request.GET.items() if value):
        return None
    asked = {name: form.data.get(name) for name in form.fields if name not in PAST}
    return urlencode({name: value for name, value in asked.items() if value})


def form_of(
    request: HttpRequest, caller: Caller, models: Sequence[str] = (), engines: Sequence[str] = ()
) -> RequestFilter:
    """The filter form, with the keys whose requests the caller may see."""
    by_member = caller.may(Permission.READ_USAGE)
    return RequestFilter(request.GET, keys_of(caller), models, engines, by_member=by_member)


def engines_offered() -> list[str]:
    """The ids of the engines that are connected."""
    return sorted(str(engine["id"]) for engine in gateways().fleet().engines)[:MAX_CHOICES]


def keys_of(caller: Caller) -> QuerySet[ApiKey]:
    """The keys whose requests the caller may see."""
    keys = caller.tenant.keys.all()
    return keys if caller.may(Permission.READ_USAGE) else keys.filter(created_by=caller.user)


@require_GET
@tenant_page(Permission.READ_OWN_USAGE)
def requests(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The list: of the whole tenant or of the caller's own keys, depending on permissions."""
    tenant, whole = caller.tenant, caller.may(Permission.READ_USAGE)
    models = models_of(tenant)
    form = form_of(request, caller, models, engines_offered())
    found, totals = FoundRows(), None
    if form.is_valid():
        found = search(form, Where.of(caller), request.GET.get("before", ""))
        own = None if whole else keys_of(caller)
        if found.events and not form.id:
            totals = counts(form.filter, form.window(timezone.now()), tenant, own)
    query = query_of(request)
    context = context_of(request, form, found) | {
        "rows": rows_of(found, tenant, form.offered),
        "counts": totals,
        "own": not whole,
        "never": not found.events and not caller.usage().exists(),
        "models": models,
        "may_create": caller.may(Permission.EDIT_OWN_KEYS),
        "base_url": f"{settings.API_URL}/v1",
        "csv": f"{reverse('requests-export', args=[tenant.slug])}?{query}",
        "may_keep": caller.role is not None,
        "views": views_of(caller, query),
        "may_save_dataset": caller.may(Permission.READ_CONTENT) and tenant.content_days > 0,
        "most_saved": MAX_REQUESTS,
    }
    return render(request, "requests/requests.html", context, status=422 if form.errors else 200)


def views_of(caller: Caller, query: str) -> list[tuple[SavedView, bool]]:
    """The caller's saved views, each with whether it is the one that is shown."""
    if caller.role is None:
        return []
    mine = SavedView.objects.of(caller.tenant, caller.user)
    return [(view, view.query == query) for view in mine]


def models_of(tenant: Tenant | None) -> list[str]:
    """Model names to suggest: the tenant's adapters and the base models."""
    adapters = Adapter.objects.filter(tenant=tenant) if tenant else Adapter.objects.none()
    names = adapters.values_list("name", flat=True).union(
        BaseModel.objects.values_list("name", flat=True)
    )
    return list(names[:MAX_CHOICES])


# --- CSV -----------------------------------------------------------------------------------------


@require_GET
@tenant_page(Permission.READ_OWN_USAGE)
def export(request: HttpRequest, caller: Caller) -> HttpResponseBase:
    """The list as CSV, with its filter: the newest CSV_ROWS."""
    form = form_of(request, caller)
    if not form.is_valid():
        return HttpResponse("The filter is not valid.", status=422, content_type="text/plain")
    slug = caller.tenant.slug
    return as_file(request, f"requests-{slug}.csv", COLUMNS, exported(form, caller), owner=slug)


def exported(form: RequestFilter, caller: Caller) -> Iterator[list[Any]]:
    """The rows of the CSV."""
    names = dict(caller.tenant.keys.values_list("pk", "name"))
    for page in _pages(form, caller, CSV_ROWS):
        scored = scores_of(caller.tenant, [one.event.id for one in page])
        for one in page:
            scores = (f"{score.name}={score.shown}" for score in scored.get(one.event.id, ()))
            yield [*_cells(one, names), " ".join(one.tags), " ".join(scores)]


def found_by(form: RequestFilter, caller: Caller, most: int) -> list[ListEntry]:
    """The newest requests that match a valid form."""
    return [one for page in _pages(form, caller, most) for one in page]


def _pages(form: RequestFilter, caller: Caller, most: int) -> Iterator[list[ListEntry]]:
    """The newest requests that match, at most `most`."""
    where, before, left = Where.of(caller), "", most
    while left > 0:
        found = search(form, where, before, size=min(CSV_PAGE, left))
        yield found.entries()
        left -= len(found.events)
        before = found.next
        if not before:
            return


def _cells(one: ListEntry, names: dict[int, str]) -> list[Any]:
    event, billed = one.event, one.billed
    start = event.started_at.astimezone(UTC).isoformat()
    cells = [f"req_{event.id}", start, one.status, one.outcome, one.code, one.message]
    cells += [event.model, event.adapter, event.base_model, str(event.key_id)]
    cells += [names.get(event.key_id, "")]
    if billed is None:
        return [*cells, "", "", "", "", "", "", "", "", event.total_s, "", ""]
    counted = [billed.prompt_tokens, billed.cached_tokens, billed.completion_tokens]
    times = [billed.queue_s, billed.load_s, billed.ttft_s, billed.total_s]
    cost = amount(billed.cost)
    return [
        *cells,
        billed.engine_id,
        *counted,
        billed.reasoning_tokens,
        *times,
        billed.attempt,
        cost,
    ]
