"""API keys: create, show once, rotate, revoke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from frontend import bulk, shown_once
from frontend.lists import older_page_of, words_of
from frontend.pages import tenant_page
from frontend.views.limits import LimitsForm, in_words, last_day
from frontend.views.usage import MONTHLY
from inference.interfaces.directory import MICRO
from tenants.limits import ceilings
from tenants.limits.ceilings import Figures
from tenants.models import (
    ApiKey,
    BaseModel,
    Lane,
    LimitScope,
    LimitSet,
    RequestHour,
    Scope,
    State,
    Tenant,
)
from tenants.models.keys import ApiKeyQuerySet
from tenants.permissions import Caller, Permission
from tenants.utc import month_end, month_start

EXPIRES_SOON = timedelta(days=14)
EXPIRING, REVOKED = "expiring", "revoked"
"""What `?show=` lists: only the keys that expire soon, or the revoked ones too."""
MAX_CHOICES = 50
"""Maximum number of adapters offered as choices; with more, their names are typed."""
LIFETIMES = {
    "": "Never",
    "7": "In 7 days",
    "30": "In 30 days",
    "90": "In 90 days",
    "365": "In a year",
}
OVERLAPS = {"0": "at once", "1": "in a day", "7": "in a week"}
SCOPES = {
    Scope.INFERENCE: "Call models",
    Scope.WRITE_ADAPTERS: "Upload and promote adapters",
    Scope.READ_USAGE: "Read usage, costs and receipts",
    Scope.WRITE_SCORES: "Tag and score requests, for programs that evaluate answers",
    Scope.ADMIN: "Manage the tenant. Do not use such a key to call models",
}


REVOKE = bulk.Action(
    "Revoke",
    "Revoke the selected keys?",
    "Requests with these keys are refused immediately, and their open streams end. "
    "This cannot be undone.",
)


class ModelNames(forms.CharField):
    """Names of the tenant's models, separated by spaces or commas; cleaned to a list."""

    def __init__(self, tenant: Tenant, **options: Any) -> None:
        super().__init__(**options)
        self._tenant = tenant

    def clean(self, value: Any) -> Any:
        """Raises ValidationError if some of them are not the tenant's."""
        names = sorted(set(super().clean(value).replace(",", " ").split()))
        known = set(self._tenant.adapters.filter(name__in=names).values_list("name", flat=True))
        known |= set(BaseModel.objects.filter(name__in=names).values_list("name", flat=True))
        if unknown := [name for name in names if name not in known]:
            raise ValidationError(f"There is no model “{unknown[0]}”.")
        return names


def _models_field(tenant: Tenant) -> forms.Field:
    """The models to which a key may be restricted: choices if there are few, else a text field."""
    options: dict[str, Any] = {"required": False, "label": "Only these models"}
    usable = tenant.adapters.filter(versions__state=State.READY).distinct()
    names = list(usable.values_list("name", flat=True)[: MAX_CHOICES + 1])
    if len(names) > MAX_CHOICES:
        return ModelNames(
            tenant, help_text="Names separated by spaces. Leave empty for all models.", **options
        )
    names += BaseModel.objects.values_list("name", flat=True)
    return forms.MultipleChoiceField(
        choices=[(name, name) for name in names],
        widget=forms.CheckboxSelectMultiple,
        help_text="Choose none to allow all models.",
        **options,
    )


class KeyForm(forms.Form):
    """A new key, with only the scopes that the caller may grant."""

    name = forms.CharField(max_length=200, help_text="What uses it, for example “billing service”.")
    scopes = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple, label="Scopes")
    models = forms.Field()  # the kind of field depends on the tenant
    lane = forms.ChoiceField(
        choices=[
            (Lane.INTERACTIVE, "Interactive"),
            (Lane.BATCH, "Batch: waits behind interactive requests"),
        ]
    )
    expires = forms.ChoiceField(choices=list(LIFETIMES.items()), required=False)
    keeps_nothing = forms.BooleanField(
        required=False, label="Never store prompts and answers of this key"
    )

    def __init__(self, caller: Caller, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scopes = [(scope, text) for scope, text in SCOPES.items() if scope in caller.key_scopes]
        self.fields["scopes"].choices = scopes  # type: ignore[attr-defined]
        self.fields["scopes"].initial = [Scope.INFERENCE]
        self.fields["models"] = _models_field(caller.tenant)

    def issue(self, caller: Caller) -> tuple[ApiKey, str]:
        """Create the key of a valid form; returns it and its text."""
        given = self.cleaned_data
        days = given["expires"]
        return ApiKey.objects.issue(
            caller.tenant,
            name=given["name"],
            scopes=given["scopes"],
            allowed_models=given["models"] or None,
            lane=given["lane"],
            keeps_nothing=given["keeps_nothing"],
            expires_at=timezone.now() + timedelta(days=int(days)) if days else None,
            created_by=caller.user,
        )


@never_cache
@tenant_page(Permission.READ_KEYS)
def keys(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The list; POST creates a key, whose text the list then shows once."""
    if request.method != "POST":
        return _list(request, caller, KeyForm(caller), _limits_form(caller))
    caller.require(Permission.EDIT_OWN_KEYS)
    form, limits = KeyForm(caller, request.POST), _limits_form(caller, request.POST)
    if not all([form.is_valid(), limits is None or limits.is_valid()]):
        return _list(request, caller, form, limits)
    with transaction.atomic():  # so that the key never exists without its limits
        key, secret = form.issue(caller)
        if limits is not None and limits.has_changed():
            LimitScope(caller.tenant, key=key).store(LimitSet.Author.TENANT, limits.cleaned_data)
    return shown_once.redirect(request, reverse("keys", args=[caller.tenant.slug]), secret)


def _limits_form(caller: Caller, data: Any = None) -> LimitsForm | None:
    """A form for the new key's own limits; None for callers who may not set any."""
    if not caller.may(Permission.EDIT_LIMITS):
        return None
    return LimitsForm(LimitSet.Author.TENANT, {}, LimitScope(caller.tenant).ceiling(), data)


@require_POST
@tenant_page(Permission.EDIT_OWN_KEYS)
def revoke(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Revoke the key for good; its open streams end."""
    key = _mine(caller, pk)
    key.revoke()
    messages.success(request, f"“{key.name}” is revoked. Its open streams end within a second.")
    return redirect("keys", caller.tenant.slug)


@require_POST
@tenant_page(Permission.EDIT_OWN_KEYS)
def revoke_some(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Revoke the chosen keys for good."""

    def one(id: str) -> None:
        _mine(caller, bulk.number(id)).revoke()

    bulk.act(request, one, "key,keys", "revoked")
    return redirect("keys", caller.tenant.slug)


@require_POST
@tenant_page(Permission.EDIT_OWN_KEYS)
def rotate(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Create a key like this one; the old one expires after the overlap."""
    old = _mine(caller, pk)
    overlap = request.POST.get("overlap", "1")
    days = int(overlap) if overlap in OVERLAPS else 1
    _, secret = old.rotate(timedelta(days=days), by=caller.user)
    return shown_once.redirect(request, reverse("keys", args=[caller.tenant.slug]), secret)


def expiring_keys(caller: Caller, now: datetime) -> ApiKeyQuerySet:
    """The keys that expire soon and that the caller may rotate: all of the tenant, or only the
    caller's own. The first to expire comes first."""
    keys = caller.tenant.keys.with_text().filter(
        revoked_at=None, expires_at__gt=now, expires_at__lt=now + EXPIRES_SOON
    )
    if not caller.may(Permission.EDIT_KEYS):
        keys = keys.filter(created_by=caller.user)
    return keys.order_by("expires_at")


def _list(
    request: HttpRequest, caller: Caller, form: KeyForm, limits: LimitsForm | None
) -> HttpResponse:
    now, show = timezone.now(), request.GET.get("show", "")
    if show == EXPIRING:
        found = expiring_keys(caller, now).order_by("-pk")
    else:
        found = caller.tenant.keys.with_text()
    if words := words_of(request):
        found = found.filter(Q(name__icontains=words) | Q(prefix__startswith=words))
    revoked = 0 if show == EXPIRING else found.exclude(revoked_at=None).count()
    if show != REVOKED:
        found = found.filter(revoked_at=None)
    rows, last = older_page_of(request, found.select_related("created_by"))
    refused = bool(form.errors or (limits and limits.errors))
    context = {
        "keys": rows_of(caller, rows, now),
        "month": f"{month_start(now):%Y-%m-%dT%H:%M}",
        "may_limit": caller.may(Permission.EDIT_LIMITS),
        "last": last,
        "words": words,
        "show": show,
        "revoked": revoked,
        "form": form,
        "limits_form": limits,
        "refused": refused,
        "overlaps": OVERLAPS,
        "bulk": [REVOKE.of("keys-revoke-some", caller.tenant.slug)],
        "may_create": caller.may(Permission.EDIT_OWN_KEYS) and bool(caller.key_scopes),
    }
    return shown_once.render(request, "keys.html", context, status=422 if refused else 200)


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key with its state, limits and usage."""

    key: ApiKey
    state: str
    may_edit: bool
    cost: int | None
    """This month, in pico-units; None if the caller may not see it."""
    budget: int | None
    """Per month, in micro-units of the currency."""
    limits: list[str]
    refused: int
    """Requests refused in the last 24 hours."""

    @property
    def spent(self) -> int:
        """The cost in micro-units, for the bar."""
        return (self.cost or 0) // MICRO


def rows_of(caller: Caller, keys: Sequence[ApiKey], now: datetime) -> list[ListedKey]:
    """The rows of the list for these keys."""
    spent = _spent(caller, keys, now)
    limits = _limits_of(caller.tenant, keys)
    figures = RequestHour.objects.filter(tenant=caller.tenant, at__in=last_day())
    counted = figures.filter(key__in=keys, outcome="refused").order_by().values("key")
    refused = dict(counted.annotate(count=Sum("requests")).values_list("key", "count"))
    return [
        ListedKey(
            key,
            _state(key, now),
            _may_edit(caller, key),
            spent.get(key.pk, 0) if _may_see(caller, key) else None,
            limits.get(key.pk, {}).get(MONTHLY),
            in_words(limits.get(key.pk, {})),
            refused.get(key.pk, 0),
        )
        for key in keys
    ]


def _spent(caller: Caller, keys: Sequence[ApiKey], now: datetime) -> dict[int, int]:
    """The cost of each key this month, in pico-units."""
    used = caller.usage().filter(key__in=keys)
    return {
        row["key"]: int(row["cost"]) for row in used.sums(["key"], month_start(now), month_end(now))
    }


def _limits_of(tenant: Tenant, keys: Sequence[ApiKey]) -> dict[int, Figures]:
    """The limits in force for each key that has limits of its own."""
    sets: dict[int, dict[str, Figures]] = {}
    for row in LimitSet.objects.filter(tenant=tenant, key__in=keys):
        sets.setdefault(row.key_id or 0, {})[row.author] = row.figures
    return {pk: ceilings.in_force(one) for pk, one in sets.items()}


def _may_see(caller: Caller, key: ApiKey) -> bool:
    return caller.sees_all_sums or caller.made(key)


def _state(key: ApiKey, now: Any) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= now:
        return "expired"
    soon = key.expires_at is not None and key.expires_at < now + EXPIRES_SOON
    return "expires soon" if soon else "active"


def _may_edit(caller: Caller, key: ApiKey) -> bool:
    return key.revoked_at is None and caller.may(caller.to_change(key))


def _mine(caller: Caller, pk: int) -> ApiKey:
    """The tenant's key with this id: for developers only their own, for admins any."""
    key = get_object_or_404(ApiKey.objects.with_text().filter(tenant=caller.tenant), pk=pk)
    caller.require(caller.to_change(key))
    return key
