"""Usage and cost of all customers together, by tenant or base model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from frontend.formats import money, percent, signed_money
from frontend.pages import as_file, operator_page
from frontend.views.operate.overview import used_by_customers
from frontend.views.requests.failures import failures
from frontend.views.usage import Row, Stat, UsageForm, UsageQuestion, UsageScope, UsageSums, page
from inference.interfaces.directory import MICRO
from tenants.api.tables import CHUNK_ROWS
from tenants.billing.money import amount
from tenants.models import EngineHour, Tenant
from tenants.models.usage.sums import FIGURES

BY = {"tenant": "tenant", "base_model": "base model"}


@require_GET
@operator_page
def usage(request: HttpRequest) -> HttpResponse:
    """As a tenant's page, without the installation's own tenants."""
    form = UsageForm(request.GET, BY)
    asked = form.question(timezone.now())
    csv = f"{reverse('operate_usage-export')}?{asked.query()}"
    context = {
        "csv": [(csv, "CSV")],
        "failures": failures(None, asked.start, asked.end),
    }
    named, used = NamedUsage(), used_by_customers()
    listed = reverse("operate_requests")
    scope = UsageScope(used, used, named.names, listed, named.closer, margins)
    return page(request, form, asked, scope, context, "operate/usage.html")


@dataclass(frozen=True, slots=True)
class Margin:
    """The margin of a base model, with amounts in pico-units. `spent` (on engines) and `left` are
    None if ENGINE_HOUR_PRICE is not set."""

    name: str
    earned: int
    hours: float

    @property
    def spent(self) -> int | None:
        each = settings.ENGINE_HOUR_PRICE
        return round(self.hours * each * MICRO) if each else None

    @property
    def left(self) -> int | None:
        return None if self.spent is None else self.earned - self.spent

    @property
    def share(self) -> float | None:
        return self.left / self.earned if self.left is not None and self.earned else None

    @property
    def per_hour(self) -> int | None:
        return round(self.earned / self.hours) if self.hours else None


def margins(
    asked: UsageQuestion, total: Row, rows: Sequence[Row]
) -> tuple[list[Stat], list[Margin] | None]:
    """The margin over all base models, and of each if usage is grouped by base model."""
    hours = EngineHour.objects.by_model(asked.start, asked.end)
    whole = Margin("", int(total["cost"]), sum(hours.values()))
    hourly = "" if whole.per_hour is None else f"{money(whole.per_hour)} revenue per hour"
    stats = [Stat("Engine hours", f"{whole.hours:,.1f}", hourly)]
    if whole.left is not None:
        detail = f"{signed_money(whole.left)} after {money(whole.spent)} for engines"
        stats.append(Stat("Margin", percent(whole.share), detail))
    if asked.by != "base_model":
        return stats, None
    earned = {row["base_model"]: int(row["cost"]) for row in rows}
    names = [*earned, *(name for name in hours if name not in earned)]
    return stats, [Margin(name, earned.get(name, 0), hours.get(name, 0.0)) for name in names]


class NamedUsage:
    """Names of groups; tenants that `names` has looked up link to their own pages."""

    def __init__(self) -> None:
        self._tenants: Mapping[Any, Tenant] = {}

    def names(self, by: str, found: Sequence[Any]) -> Mapping[Any, str]:
        if by != "tenant":
            return {one: one for one in found}
        self._tenants = Tenant.objects.in_bulk(found)
        return {pk: tenant.name for pk, tenant in self._tenants.items()}

    def closer(self, asked: UsageQuestion, group: Any) -> str:
        tenant = self._tenants.get(group) if asked.by == "tenant" else None
        query = asked.query(by="adapter")
        return f"{reverse('usage', args=[tenant.slug])}?{query}" if tenant else ""


@require_GET
@operator_page
def export(request: HttpRequest) -> HttpResponseBase:
    """The same usage as CSV: all groups, in the buckets of the chart."""
    form = UsageForm(request.GET, BY)
    asked = form.question(timezone.now())
    sums = asked.sums(used_by_customers(), asked.bucket, asked.by)
    name = f"usage-{asked.start:%Y-%m-%d}-{asked.by}.csv"
    return as_file(request, name, ("start", asked.by, *FIGURES), _rows(asked, sums), owner="")


def _rows(asked: UsageQuestion, sums: UsageSums) -> Iterator[list[Any]]:
    slugs = dict(Tenant.objects.values_list("pk", "slug")) if asked.by == "tenant" else {}
    for row in sums.iterator(chunk_size=CHUNK_ROWS):
        start = row[asked.bucket].astimezone(UTC).isoformat()
        figures = [amount(int(row[name])) if name == "cost" else row[name] for name in FIGURES]
        yield [start, slugs.get(row[asked.by], row[asked.by]), *figures]
