"""Limits of a tenant, its keys and its adapters: ceiling, limit in force, usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import models
from django.db.models import Exists, OuterRef, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.views.decorators.vary import vary_on_headers

from frontend.formats import entered, money, number, price
from frontend.lists import MAX_DIGITS, words_of
from frontend.pages import tenant_page
from frontend.periods import USUAL
from inference.interfaces.directory import MICRO
from tenants.fleet import limit_usage
from tenants.limits import ceilings
from tenants.limits.ceilings import Figures, Sets
from tenants.limits.kinds import KINDS, TENANT_KINDS, Kinds, LimitKind
from tenants.models import (
    Adapter,
    ApiKey,
    LimitScope,
    LimitSet,
    RequestHour,
    Tenant,
    TotalHour,
)
from tenants.models.limits import MAX_LIMIT
from tenants.permissions import Caller, Permission
from tenants.utc import HOUR

MAX_LISTED = 20
"""Maximum number of keys, and of adapters, below the table; a filter finds the others."""
NO_LIMIT, NOT_SET = "No limit", "Not set"
OPERATOR, TENANT = LimitSet.Author.OPERATOR, LimitSet.Author.TENANT


class LimitsForm(forms.Form):
    """The limits that one author (operator or tenant) sets for one scope; empty means no limit."""

    def __init__(
        self,
        author: LimitSet.Author,
        set_now: Figures,
        ceiling: Figures,
        data: Any = None,
        *,
        kinds: Kinds = KINDS,
    ) -> None:
        initial = {name: _entered(kind, set_now.get(name)) for name, kind in kinds.items()}
        super().__init__(data, prefix=author.value, initial=initial)
        self.author = author
        self._ceiling, self._kinds = ceiling, kinds
        for name, kind in kinds.items():
            self.fields[name] = _field(kind, ceiling.get(name))

    def clean(self) -> dict[str, Any]:
        """The figures in the units in which they are stored."""
        figures = {
            name: _stored(self._kinds[name], value) for name, value in self.cleaned_data.items()
        }
        for name, highest in ceilings.beyond(figures, self._ceiling).items():
            kind = self._kinds[name]
            value, most = shown(kind, figures[name]), shown(kind, highest)
            self.add_error(name, f"{value} is above the ceiling of {most}.")
        return figures


@dataclass(frozen=True, slots=True)
class LimitLine:
    """One row of the table; `used` and `limit` are for the bar."""

    label: str
    help: str
    in_force: str
    own: str
    ceiling: str
    used_text: str
    used: int | None
    limit: int | None
    ceiling_by: str
    """Where the ceiling comes from, if the operator did not set it for this scope."""
    refused: int = 0
    """Requests that it refused in the last 24 hours."""
    refusals: str = ""
    """URL of the list of those requests."""


@tenant_page(Permission.READ_LIMITS)
def limits(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The tenant's own limits, with links to those of its keys and adapters."""
    return _page(
        request, caller, LimitScope(caller.tenant), reverse("limits", args=[caller.tenant.slug])
    )


@vary_on_headers("HX-Request")
@tenant_page(Permission.READ_LIMITS)
def of_key(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """The limits of one key."""
    key = get_object_or_404(caller.tenant.keys.with_limits(), pk=pk)
    where = reverse("limits-key", args=[caller.tenant.slug, pk])
    if request.POST.get("from") == "keys":
        where = reverse("keys", args=[caller.tenant.slug])
    return _page(request, caller, LimitScope(caller.tenant, key=key), where)


@tenant_page(Permission.READ_LIMITS)
def of_adapter(request: HttpRequest, caller: Caller, name: str) -> HttpResponse:
    """The limits of one adapter, over all keys that use it."""
    adapter = get_object_or_404(caller.tenant.adapters, name=name)
    where = reverse("limits-adapter", args=[caller.tenant.slug, name])
    return _page(request, caller, LimitScope(caller.tenant, adapter=adapter), where)


def _page(request: HttpRequest, caller: Caller, scope: LimitScope, where: str) -> HttpResponse:
    """Show the scope's limits; POST stores those that its `author` may set."""
    sets = scope.sets()
    ceiling = ceilings.ceiling(sets, scope.kinds) if scope.whole else scope.ceiling()
    bounds = _bounds(caller, scope, ceiling)
    author = _author(request, bounds)
    edited = {
        one: LimitsForm(
            one,
            sets.get(one, {}),
            bound,
            request.POST if one == author else None,
            kinds=scope.kinds,
        )
        for one, bound in bounds.items()
    }
    if author is not None and edited[author].is_valid():
        scope.store(author, edited[author].cleaned_data)
        messages.success(request, "Limits saved. They apply within a second.")
        return redirect(where)
    if "HX-Request" in request.headers and author is None:
        form = edited.get(TENANT)
        if form is not None:
            form.auto_id = "loaded_%s"  # the list of keys already has such a form, for new keys
        return render(request, "limits/dialog.html", {"scope": scope, "form": form})
    context = _shown(scope, sets, ceiling) | {
        "query": query_of(scope),
        "own_form": edited.get(TENANT),
        "ceiling_form": edited.get(OPERATOR),
        **(_others(request, caller) if scope.whole else {}),
    }
    return render(request, "limits/limits.html", context, status=200 if author is None else 422)


def state(scope: LimitScope) -> dict[str, Any]:
    """The rows of the table."""
    sets = scope.sets()
    ceiling = ceilings.ceiling(sets, scope.kinds) if scope.whole else scope.ceiling()
    return _shown(scope, sets, ceiling)


def query_of(scope: LimitScope) -> str:
    """Query parameters that name this scope for live updates; `scope_of` reads them."""
    if scope.key is not None:
        return f"key:{scope.key.pk}"
    return f"adapter:{scope.adapter.name}" if scope.adapter is not None else ""


def scope_of(tenant: Tenant, query: str) -> LimitScope | None:
    """The tenant's scope that a live request names; None if it does not exist."""
    kind, _, name = query.partition(":")
    if kind == "key" and name.isdecimal() and len(name) <= MAX_DIGITS:
        key = tenant.keys.with_limits().filter(pk=int(name)).first()
        return LimitScope(tenant, key=key) if key else None
    if kind == "adapter":
        adapter = tenant.adapters.filter(name=name).first()
        return LimitScope(tenant, adapter=adapter) if adapter else None
    return None if query else LimitScope(tenant)


def _bounds(caller: Caller, scope: LimitScope, ceiling: Figures) -> dict[LimitSet.Author, Figures]:
    """The authors in whose name the caller may set limits here, each with its ceiling."""
    if scope.key is not None and scope.key.revoked_at is not None:
        return {}
    own: dict[LimitSet.Author, Figures] = {TENANT: ceiling}
    own = own if caller.may(Permission.EDIT_LIMITS) else {}
    return own | ({OPERATOR: {}} if caller.may(Permission.OPERATE) else {})


def _author(
    request: HttpRequest, bounds: Mapping[LimitSet.Author, Figures]
) -> LimitSet.Author | None:
    """The author in whose name the request changes limits; None if it changes nothing.

    Raises:
        PermissionDenied: the caller may not act for that author.
    """
    if request.method != "POST":
        return None
    for author in bounds:
        if author == request.POST.get("author"):
            return author
    raise PermissionDenied("You may not change these limits.")


def _shown(scope: LimitScope, sets: Sets, ceiling: Figures) -> dict[str, Any]:
    limited = ceilings.limits(scope.id, "", sets)
    used = limit_usage.used(scope, limited[0] if limited else None)
    lines = lines_of(scope, sets, ceiling, used, kinds=scope.kinds)
    refused = refused_by(scope)
    return {
        "scope": scope,
        "lines": [
            replace(line, refused=refused.get(name, 0), refusals=refusals_of(scope, name))
            for name, line in zip(scope.kinds, lines, strict=True)
        ],
    }


def last_day() -> list[datetime]:
    """The starts of the last 24 hours, the present one first; one by one, so that an index finds a
    key's rows of each."""
    end = USUAL.end(timezone.now())
    return [end - n * HOUR for n in range(1, 25)]


def refused_by(scope: LimitScope) -> dict[str, int]:
    """How many requests each limit of the scope refused in the last 24 hours, by its kind."""
    figures: Any = TotalHour if scope.whole else RequestHour
    found = figures.objects.filter(tenant=scope.tenant, at__in=last_day(), outcome="refused")
    if scope.key is not None:
        found = found.filter(key=scope.key, limit_scope="key")
    elif scope.adapter is not None:
        found = found.filter(adapter=scope.adapter.name, limit_scope="adapter")
    else:
        found = found.filter(limit_scope="tenant")
    counted = found.order_by().values("limit_kind").annotate(count=Sum("requests"))
    return {row["limit_kind"]: row["count"] for row in counted}


def refusals_of(scope: LimitScope, kind: str) -> str:
    """URL of the list of requests that this limit refused."""
    assert scope.tenant is not None
    query = {"period": "24h", "outcome": "refused", "q": kind}
    if scope.key is not None:
        query["key"] = str(scope.key.pk)
    if scope.adapter is not None:
        query["model"] = scope.adapter.name
    return f"{reverse('requests', args=[scope.tenant.slug])}?{urlencode(query)}"


def lines_of(
    scope: LimitScope, sets: Sets, ceiling: Figures, used: Figures, *, kinds: Kinds = KINDS
) -> list[LimitLine]:
    """A row for each kind of limit."""
    in_force, own = ceilings.in_force(sets, kinds), sets.get(ceilings.TENANT, {})
    return [
        LimitLine(
            kind.label,
            help_of(kind),
            shown(kind, in_force[name]),
            NOT_SET if own.get(name) is None else shown(kind, own[name]),
            shown(kind, ceiling[name]),
            used_of(kind, used.get(name)),
            used.get(name),
            in_force[name],
            _ceiling_by(scope, sets, name) if ceiling[name] is not None else "",
        )
        for name, kind in kinds.items()
    ]


def help_of(kind: LimitKind) -> str:
    """The help text below the label; pages show money in units of the currency."""
    return kind.help.replace("Micro-units of the currency", settings.CURRENCY.upper())


def _ceiling_by(scope: LimitScope, sets: Sets, name: str) -> str:
    if sets.get(OPERATOR, {}).get(name) is not None:
        return ""
    return "installation default" if scope.whole else "of the tenant"


def _others(request: HttpRequest, caller: Caller) -> dict[str, Any]:
    """The tenant's keys and adapters, those with limits of their own first."""
    words = words_of(request)
    keys = _having(caller.tenant.keys.with_limits().filter(revoked_at=None), "key", words)
    adapters = _having(caller.tenant.adapters.all(), "adapter", words)
    return {"keys": keys, "adapters": adapters, "words": words}


def _having(things: models.QuerySet[Any], kind: str, words: str) -> list[ApiKey | Adapter]:
    if words:
        things = things.filter(name__icontains=words)
    own = LimitSet.objects.filter(**{kind: OuterRef("pk")})
    return list(things.annotate(limited=Exists(own)).order_by("-limited", "name")[:MAX_LISTED])


def shown(kind: LimitKind, value: int | None) -> str:
    """Format a limit: with thousands separators, money in units of the currency."""
    if value is None:
        return NO_LIMIT
    return price(value) if kind.is_money else number(value)


def used_of(kind: LimitKind, value: int | None) -> str:
    """Format a usage; unlike in a limit, money is rounded. Some is counted only under a limit."""
    if value is None:
        return "Not counted"
    return money(value * MICRO) if kind.is_money else number(value)


def in_words(figures: Figures) -> list[str]:
    """The limits that are set, such as `600 requests per minute`."""
    return [
        f"{shown(kind, figures[name])} {kind.wording}"
        for name, kind in TENANT_KINDS.items()
        if figures.get(name) is not None
    ]


def _entered(kind: LimitKind, value: int | None) -> str | None:
    """A stored limit as the value of its form field."""
    if value is None:
        return None
    return entered(value) if kind.is_money else str(value)


def _stored(kind: LimitKind, value: Decimal | int | None) -> int | None:
    if value is None:
        return None
    return int(value * MICRO) if kind.is_money else int(value)


def _field(kind: LimitKind, ceiling: int | None) -> forms.Field:
    text = f"At most {shown(kind, ceiling)}." if ceiling is not None else ""
    if kind.is_money:
        return forms.DecimalField(
            required=False,
            min_value=0,
            max_value=MAX_LIMIT // MICRO,
            decimal_places=6,
            label=f"{kind.label} in {settings.CURRENCY.upper()}",
            help_text=text,
            widget=forms.NumberInput({"step": "any"}),
        )
    return forms.IntegerField(
        required=False, min_value=0, max_value=MAX_LIMIT, label=kind.label, help_text=text
    )
