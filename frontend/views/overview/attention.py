"""What needs attention in a tenant: a title, the reason, and a link to where it can be fixed.

There is one line for each kind, however many there are of it, and it leads to a list of exactly
those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, OuterRef, QuerySet
from django.db.models.functions import JSONObject
from django.urls import reverse
from django.utils.html import format_html

from frontend.causes import cause
from frontend.formats import ago, number, percent, rate
from frontend.periods import Period
from frontend.views.keys import EXPIRES_SOON
from frontend.views.overview.health import RequestSums
from frontend.views.requests.failures import EndedRequests
from inference.errors import BY_CODE, RequestError
from tenants.models import AdapterVersion, State, Tenant

NEAR = 0.8
"""Share of a budget from which it is listed; emails are sent from this share on too."""
FEW, LARGE = 10, 0.05
"""Refusals that are a client's own fault (an unknown model, an invalid parameter) are listed from
this many in the period on, if they are also this share of all requests: fewer are somebody trying
something. If as many requests of the period failed or were refused for any reason, this is listed
too, so that it never says that nothing needs attention beside such a figure."""


@dataclass(frozen=True, slots=True)
class AttentionItem:
    """One line: title, reason, and the page where it can be fixed, if the caller may see it. `tone`
    is `bad` or `warn`."""

    icon: str
    tone: str
    title: str
    why: str
    url: str
    action: str


def items(
    tenant: Tenant,
    ended: EndedRequests | None,
    strip: Mapping[str, Any],
    *,
    budgets: Iterable[Any],
    expiring: Any,
    rejected: Rejections,
) -> list[AttentionItem]:
    """The items, worst first: `ended` are the requests of the period, `strip` is the context of the
    health strip, `budgets` are those of the overview, `expiring` is the first key to expire, with
    the `count` of all such keys; each as far as the caller may see it."""
    at = Addresses(tenant.slug)
    requests = list(_requests(at, ended, strip["period"])) if ended else []
    return [
        *(requests or _large_share(strip["sums"], strip["period"], strip["wrong_url"])),
        *_budgets(at, budgets),
        *_keys(at, expiring),
        *_rejected(at, rejected),
    ]


def is_large(sums: RequestSums) -> bool:
    """Whether a large part of these requests failed or were refused."""
    return (sums.wrong_share or 0) >= LARGE


def _large_share(sums: RequestSums, period: Period, url: str) -> Iterator[AttentionItem]:
    if is_large(sums) and sums.wrong >= FEW:
        title = f"{rate(sums.wrong_share)} of requests failed or were refused in {period.title}"
        why = f"{number(sums.refused)} refused, {number(sums.failed)} failed"
        yield AttentionItem("triangle-alert", "bad", title, why, url, "View")


@dataclass(frozen=True, slots=True)
class Addresses:
    """URLs of the tenant's pages."""

    slug: str

    def of(self, page: str, *arguments: Any, **query: str) -> str:
        url = reverse(page, args=[self.slug, *arguments])
        return f"{url}?{urlencode(query)}" if query else url


@dataclass(frozen=True, slots=True)
class Rejections:
    """The rejected versions that are their adapter's newest: how many, and the last of them."""

    count: int = 0
    last: Mapping[str, Any] | None = None

    @staticmethod
    def of_tenants() -> dict[str, QuerySet[Any, Any]]:
        """The values of both fields, for subqueries on tenants."""
        newest = AdapterVersion.objects.filter(adapter=OuterRef("adapter")).order_by("-number")
        found = AdapterVersion.objects.filter(adapter__tenant=OuterRef("pk"), state=State.REJECTED)
        found = found.filter(pk=newest.values("pk")[:1])
        fields = JSONObject(
            adapter="adapter__name", number="number", reason="report__findings__0__message"
        )
        count = found.order_by().values("adapter__tenant").annotate(count=Count("pk"))
        return {
            "count": count.values("count"),
            "last": found.order_by("-created_at").values(fields=fields)[:1],
        }


def _requests(at: Addresses, ended: EndedRequests, period: Period) -> Iterator[AttentionItem]:
    for outcome, tone in (("failed", "bad"), ("refused", "warn")):
        found = [one for one in ended.reasons if one["outcome"] == outcome]
        count = sum(one["count"] for one in found)
        faults = sum(one["count"] for one in found if _is_clients_fault(one))
        if count > faults or (faults >= FEW and faults >= LARGE * ended.requests):
            requests = f"{number(count)} request{'' if count == 1 else 's'}"
            title = f"{requests} {outcome} in {period.title}"
            why = found[0]["limit"] or cause(found[0]["code"])
            url = at.of("requests", period=period.name, outcome=outcome)
            yield AttentionItem("triangle-alert", tone, title, why, url, "View")


def _is_clients_fault(reason: Mapping[str, Any]) -> bool:
    error = BY_CODE.get(reason["code"])
    return error is not None and issubclass(error, RequestError)


def _budgets(at: Addresses, budgets: Iterable[Any]) -> Iterator[AttentionItem]:
    for budget in budgets:
        share = budget.used / budget.limit if budget.limit else 1.0
        if share >= NEAR:
            tone = "bad" if share >= 1 else "warn"
            title = f"{budget.label}: {percent(share)} used"
            yield AttentionItem("gauge", tone, title, budget.outlook, at.of("limits"), "Limits")


def _keys(at: Addresses, key: Any) -> Iterator[AttentionItem]:
    if key is None:
        return
    if key.count == 1:
        title: str = format_html(
            "Key <strong>{}</strong> expires {}", key.name, ago(key.expires_at)
        )
        last = key.last_used_at
        used = format_html("Last used {}", ago(last)) if last else "Not used"
        yield AttentionItem("key-round", "warn", title, used, at.of("keys", q=key.name), "Rotate")
    else:
        title = f"{number(key.count)} keys expire within {EXPIRES_SOON.days} days"
        why = format_html("<strong>{}</strong> expires {}", key.name, ago(key.expires_at))
        yield AttentionItem("key-round", "warn", title, why, at.of("keys", show="expiring"), "View")


def _rejected(at: Addresses, rejected: Rejections) -> Iterator[AttentionItem]:
    last = rejected.last
    if not last:
        return
    named = format_html("<strong>{}@{}</strong>", last["adapter"], last["number"])
    reason = last["reason"] or ""
    if rejected.count == 1:
        title: str = format_html("{} was rejected", named)
        url = at.of("adapters-version", last["adapter"], last["number"])
        yield AttentionItem("layers", "bad", title, reason, url, "Report")
    else:
        title = f"{number(rejected.count)} versions were rejected"
        why = format_html("{}: {}", named, reason) if reason else named
        url = at.of("adapters", state=State.REJECTED.value)
        yield AttentionItem("layers", "bad", title, why, url, "View")
