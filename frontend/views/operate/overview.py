"""The operator's start page: health of the installation, and who uses it."""

from __future__ import annotations

from datetime import datetime
from heapq import nlargest
from operator import itemgetter
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from frontend.pages import operator_page
from frontend.periods import PERIODS
from frontend.views.overview import health
from frontend.views.overview.attention import FEW, is_large
from frontend.views.requests.failures import MOST, EndedRequests
from tenants import isolation
from tenants.billing.drift import Drift
from tenants.billing.reconciliation import drifts
from tenants.fleet.gateways import gateways
from tenants.models import GatewayProcess, IsolationCheck, Tenant, TenantSum
from tenants.models.usage.sums import FIGURES
from tenants.models.usage.totals import TenantSumQuerySet

TOP = 5
MAX_JOURNALS = 10
"""Maximum number of journals shown that agree with the ledger; all that differ are shown."""
COUNTS = """
SELECT (SELECT count(*) FROM tenants_tenant WHERE NOT internal),
       (SELECT count(*) FROM tenants_quarantinedentry WHERE status = 'open')
"""
MAX_MODELS = 20
"""Maximum number of base models whose isolation check is shown."""


@require_GET
@operator_page
def overview(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    period = health.chosen(request)
    since = period.start(now).replace(minute=0)  # the ledger's sums are of whole hours
    billed = used_by_customers().sums([], since, now)
    by, most = tops(since, now)
    alive, lost = GatewayProcess.objects.alive_and_lost()
    isolation_checks = list(IsolationCheck.objects.latest_of_each()[:MAX_MODELS])
    strip = health.of_all(period, now)
    context = {
        "fleet": fleet(),
        "billed_since": since,
        "billed": next(iter(billed), None) or dict.fromkeys(FIGURES, 0),
        "top_by": by,
        "tops": most,
        "journals": journals(),
        "gateways": alive,
        "lost": lost,
        "limits": limits(len(alive)),
        **counts(),
        "failures": EndedRequests.lately(None, period, now).reasons[:MOST],
        "failures_in": f"period={period.name}",
        "isolation": isolation_checks,
        "leaking": [one.base_model for one in isolation_checks if one.passed is False],
        "periods": PERIODS.values(),
        "wrong": is_large(strip["sums"]) and strip["sums"].wrong >= FEW,
        **strip,
    }
    return render(request, "operate/overview.html", context)


@require_POST
@operator_page
def check_isolation(request: HttpRequest) -> HttpResponse:
    """Have a worker check isolation now instead of at the next scheduled time."""
    if isolation.check_soon():
        messages.success(
            request, "A worker is checking isolation now. The result appears here within a minute."
        )
    else:
        messages.info(request, "A check is already running.")
    return redirect("operate")


def used_by_customers() -> TenantSumQuerySet:
    """The usage of all tenants but the installation's own."""
    return TenantSum.objects.exclude(tenant__in=Tenant.objects.internal())


def counts() -> dict[str, int]:
    """Customers, and quarantined entries that wait for a decision; in one query."""
    with connection.cursor() as cursor:
        cursor.execute(COUNTS)
        tenants, quarantined = cursor.fetchall()[0]
    return {"tenants": tenants, "quarantined": quarantined}


def fleet() -> dict[str, Any]:
    """Sums over the connected engines; `kv_usage` is that of the fullest one, 0 to 1."""
    found = gateways().fleet().engines
    sums = {name: sum(one[name] for one in found) for name in ("running", "waiting", "queued")}
    fullest = max((one["kv_usage"] for one in found), default=None)
    draining = sum(one["draining"] for one in found)
    return sums | {"engines": len(found), "draining": draining, "kv_usage": fullest}


def tops(start: datetime, end: datetime) -> tuple[str, list[dict[str, Any]]]:
    """The tenants with the highest cost, or while nothing has a price with the most tokens, and
    which of the two."""
    sums = used_by_customers().sums(["tenant"], start, end)
    rows = [{**row, "tokens": row["prompt_tokens"] + row["completion_tokens"]} for row in sums]
    by = "cost" if any(row["cost"] for row in rows) else "tokens"
    most = nlargest(TOP, (row for row in rows if row[by]), key=itemgetter(by))
    # Names are looked up last: a join would compare them for each sum.
    tenants = Tenant.objects.in_bulk({row["tenant"] for row in most})
    return by, [{**row, "tenant": tenants[row["tenant"]]} for row in most]


def journals() -> dict[str, Any]:
    """Reconciliation of the ledger with each engine's journal; those that differ first."""
    found = drifts()
    wrong = [drift for drift in found if drift]
    right = sorted((drift for drift in found if not drift), key=_reported, reverse=True)
    shown = wrong + right[:MAX_JOURNALS]
    return {"shown": shown, "wrong": len(wrong), "more": len(found) - len(shown)}


def _reported(drift: Drift) -> float:
    at = drift.journal.reported_at
    return at.timestamp() if at else 0.0


def limits(alive: int) -> dict[str, str]:
    """How the living gateways share limit counters at present: a state and its meaning."""
    if not settings.REDIS_URL and alive > 1:
        text = (
            f"Each of the {alive} gateways counts separately. Set LORIKEET_REDIS_URL for all of "
            "them."
        )
        return {"state": "degraded", "text": text}
    if not settings.REDIS_URL:
        return {"state": "local", "text": "Counted in the gateway: Redis is not configured."}
    if not gateways().fleet().limits_degraded:
        return {"state": "shared", "text": "Counted in Redis, for all gateways together."}
    if settings.LIMITS_WITHOUT_REDIS == "refuse":
        return {"state": "refusing", "text": "Redis is unreachable: requests are refused."}
    return {"state": "degraded", "text": "Redis is unreachable: each gateway counts separately."}
