"""`/v1/usage/receipts`: signed receipts for a tenant's keys, and the public key for everybody."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Q
from django.http import HttpRequest, HttpResponse

from inference.errors import InvalidRequest, NotFound
from tenants.api.openai.views import Query, ends_early, keyed, openai_view, reply
from tenants.billing.receipts import describe, signer
from tenants.models import ApiKey, Scope, Tenant, UsageEvent
from tenants.models.usage.ledger import UsageEventQuerySet
from tenants.permissions import TABLE, Permission

READERS = TABLE[Permission.READ_USAGE][1]
DEFAULT_LIMIT, MAX_LIMIT = 100, 1000


def _events(tenant: Tenant) -> UsageEventQuerySet:
    return UsageEvent.objects.filter(tenant=tenant).select_related("tenant", "version")


def _find(tenant: Tenant, shown_id: str) -> UsageEvent | None:
    return _events(tenant).named(shown_id).first()


@keyed(READERS | {Scope.INFERENCE})
def receipt(request: HttpRequest, key: ApiKey, request_id: str) -> dict[str, Any]:
    """The receipt of one request of the key's tenant."""
    event = _find(key.tenant, request_id)
    if event is None:
        # The same message as for a request of another tenant.
        raise NotFound(
            "This request has no receipt. A receipt is available once its request has ended."
        )
    return signer().sign(describe(event))


@keyed(READERS)
def receipts(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    """The receipts of requests that started in a period, the oldest first.

    Over whole hours their costs add up to those of `/api/v1/costs`.
    """
    query = Query(request.GET, ["start_time", "end_time", "limit", "after"])
    limit = query.integer("limit", 1, MAX_LIMIT) or DEFAULT_LIMIT
    events = _events(key.tenant).filter(_within(query.time("start_time"), query.time("end_time")))
    after = query.word("after")
    if after is not None:
        events = events.filter(_later_than(key.tenant, after))
    found = list(events.order_by("started_at", "id")[: limit + 1])
    sign = signer().sign
    data = [sign(describe(event)) for event in found[:limit]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["receipt"]["id"] if data else None,
        "last_id": data[-1]["receipt"]["id"] if data else None,
        "has_more": len(found) > limit,
    }


def _within(start: datetime | None, end: datetime | None) -> Q:
    if start is not None and end is not None and start >= end:
        raise ends_early(start, end)
    since = Q() if start is None else Q(started_at__gte=start)
    return since if end is None else since & Q(started_at__lt=end)


def _later_than(tenant: Tenant, shown_id: str) -> Q:
    last = _find(tenant, shown_id)
    if last is None:
        raise InvalidRequest("`after` is not the id of a request with a receipt.", param="after")
    # Only the condition on `started_at__gte` can use the index.
    return Q(started_at__gte=last.started_at) & (
        Q(started_at__gt=last.started_at) | Q(id__gt=last.id)
    )


@openai_view
def key_set(request: HttpRequest) -> HttpResponse:
    """The key that verifies receipts which are signed now, as a JWK set (RFC 7517)."""
    return reply({"keys": [signer().public_key.jwk]})


@openai_view
def public_key(request: HttpRequest) -> HttpResponse:
    """The same key for tools without JOSE."""
    key = signer().public_key
    return reply(
        {
            "object": "usage.receipt_key",
            "algorithm": "Ed25519",
            "key_id": key.id,
            "public_key": key.raw.hex(),
            "pem": key.pem,
        }
    )
