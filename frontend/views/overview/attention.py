"""What needs attention in a tenant: a title, the reason, and a link to where it can be fixed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import OuterRef, QuerySet
from django.db.models.functions import JSONObject
from django.urls import reverse
from django.utils.html import format_html

from frontend.causes import cause
from frontend.formats import ago, number, percent
from tenants.models import AdapterVersion, ApiKey, State, Tenant

NEAR = 0.8
"""Share of a budget from which it is listed; emails are sent from this share on too."""


@dataclass(frozen=True, slots=True)
class AttentionItem:
    """One line: title, reason, and the page where it can be fixed. `tone` is `bad` or `warn`."""

    icon: str
    tone: str
    title: str
    why: str
    url: str
    action: str


def items(
    tenant: Tenant,
    failures: Sequence[Mapping[str, Any]],
    budgets: Iterable[Any],
    expiring: Iterable[ApiKey],
    rejected: Mapping[str, Any] | None,
) -> list[AttentionItem]:
    """The items, worst first. `failures` and `budgets` are those of the overview, `rejected` is the
    result of `last_rejected`; each as far as the caller may see it."""
    at = Addresses(tenant.slug)
    return [
        *_requests(at, failures),
        *_budgets(at, budgets),
        *_keys(at, expiring),
        *_rejected(at, rejected),
    ]


@dataclass(frozen=True, slots=True)
class Addresses:
    """URLs of the tenant's pages."""

    slug: str

    def of(self, page: str, *arguments: Any, **query: str) -> str:
        url = reverse(page, args=[self.slug, *arguments])
        return f"{url}?{urlencode(query)}" if query else url


def last_rejected() -> QuerySet[Any, Any]:
    """For a subquery on tenants: the last rejected version that is its adapter's newest."""
    newest = AdapterVersion.objects.filter(adapter=OuterRef("adapter")).order_by("-number")
    found = AdapterVersion.objects.filter(adapter__tenant=OuterRef("pk"), state=State.REJECTED)
    found = found.filter(pk=newest.values("pk")[:1]).order_by("-created_at")
    told = JSONObject(
        adapter="adapter__name", number="number", reason="report__findings__0__message"
    )
    return found.values(told=told)[:1]


def _requests(at: Addresses, failures: Sequence[Mapping[str, Any]]) -> Iterator[AttentionItem]:
    for outcome, tone in (("failed", "bad"), ("refused", "warn")):
        found = [one for one in failures if one["outcome"] == outcome]
        if found:
            count = sum(one["count"] for one in found)
            title = f"{number(count)} request{'' if count == 1 else 's'} {outcome} in 24 hours"
            why = found[0]["limit"] or cause(found[0]["code"])
            url = at.of("requests", period="24h", outcome=outcome)
            yield AttentionItem("triangle-alert", tone, title, why, url, "View")


def _budgets(at: Addresses, budgets: Iterable[Any]) -> Iterator[AttentionItem]:
    for budget in budgets:
        share = budget.used / budget.limit if budget.limit else 1.0
        if share >= NEAR:
            tone = "bad" if share >= 1 else "warn"
            title = f"{budget.label}: {percent(share)} used"
            yield AttentionItem("gauge", tone, title, budget.outlook, at.of("limits"), "Limits")


def _keys(at: Addresses, expiring: Iterable[ApiKey]) -> Iterator[AttentionItem]:
    for key in expiring:
        title = format_html("Key <strong>{}</strong> expires {}", key.name, ago(key.expires_at))
        used = (
            format_html("Last used {}", ago(key.last_used_at)) if key.last_used_at else "Not used"
        )
        yield AttentionItem("key-round", "warn", title, used, at.of("keys", q=key.name), "Rotate")


def _rejected(at: Addresses, rejected: Mapping[str, Any] | None) -> Iterator[AttentionItem]:
    if rejected:
        name, version = rejected["adapter"], rejected["number"]
        title = format_html("<strong>{}@{}</strong> was rejected", name, version)
        url = at.of("adapters-version", name, version)
        yield AttentionItem("layers", "bad", title, rejected["reason"] or "", url, "Report")
