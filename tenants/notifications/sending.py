"""Deliveries are made: a few at a time, each again after a longer pause, for three days.

Webhooks are signed as Standard Webhooks has it (https://www.standardwebhooks.com): the id of the
notification stays the same over all attempts, so that a receiver can tell a repeated one. A worker
that dies leaves its deliveries to the others after a LEASE: one may come twice, and none is lost.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx
import structlog
from channels.db import database_sync_to_async
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from tenants.models.notifications import Delivery, DeliveryState, Target
from tenants.notifications.addresses import Forbidden, pin

log = structlog.get_logger(__name__)

PAUSES = [timedelta(seconds=s) for s in (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)]
"""After each attempt but the last: those that Standard Webhooks suggests."""
LEASE = timedelta(seconds=60)
"""What a worker has taken is nobody else's for so long."""
AT_ONCE = 20
ANSWER_S = 10.0
EVERY_S = 2.0
MAX_ERROR = 300


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an attempt; no error: it was delivered."""

    error: str = ""
    status: int | None = None


def sign(secret: str, id: str, at: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{id}.{at}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"


def payload_of(delivery: Delivery) -> dict[str, Any]:
    told = delivery.notification
    tenant = {} if told.tenant is None else {"tenant": told.tenant.slug}
    return {"type": told.kind, "timestamp": told.at.isoformat(), "data": {**tenant, **told.data}}


def claim(now: datetime) -> list[Delivery]:
    """Take deliveries that are due, one of each target, for a LEASE."""
    waiting = Delivery.objects.filter(state=DeliveryState.WAITING, due_at__lte=now)
    firsts = waiting.order_by("target_id", "due_at").distinct("target_id").values("pk")[:AT_ONCE]
    with transaction.atomic():
        taken = list(
            waiting.filter(pk__in=list(firsts.values_list("pk", flat=True)))
            .select_for_update(skip_locked=True, of=("self",))
            .select_related("target", "notification__tenant")
        )
        Delivery.objects.filter(pk__in=[one.pk for one in taken]).update(due_at=now + LEASE)
    return taken


def record(delivery: Delivery, result: Result, now: datetime) -> None:
    """Note what came of an attempt, and when it is tried again."""
    attempts = delivery.attempts + 1
    gone = result.status == 410
    fields: dict[str, Any] = {"state": DeliveryState.DELIVERED}
    if result.error:
        last = gone or attempts > len(PAUSES)
        fields["state"] = DeliveryState.FAILED if last else DeliveryState.WAITING
        fields["due_at"] = now if last else now + PAUSES[attempts - 1]
    Delivery.objects.filter(pk=delivery.pk).update(
        attempts=F("attempts") + 1,
        tried_at=now,
        status=result.status,
        error=result.error[:MAX_ERROR],
        **fields,
    )
    if gone:
        Target.objects.filter(pk=delivery.target_id, ended_at=None).update(ended_at=now)
    log.info(
        "notification_sent" if not result.error else "notification_not_sent",
        id=str(delivery.notification_id), kind=delivery.notification.kind,
        target=delivery.target_id, status=result.status, error=result.error or None,
    )  # fmt: skip


async def attempt(client: httpx.AsyncClient, delivery: Delivery, now: datetime) -> Result:
    """Try to deliver it; never raises."""
    try:
        return await _post(client, delivery, now)
    except Forbidden as error:
        return Result(str(error))
    except (httpx.HTTPError, OSError, TimeoutError) as error:
        return Result(str(error) or type(error).__name__)


async def _post(client: httpx.AsyncClient, delivery: Delivery, now: datetime) -> Result:
    body = json.dumps(payload_of(delivery), separators=(",", ":")).encode()
    id, at = f"msg_{delivery.notification_id.hex}", int(now.timestamp())
    headers = {
        "content-type": "application/json",
        "user-agent": "Lorikeet",
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(delivery.target.secret, id, at, body),
    }
    async with asyncio.timeout(ANSWER_S):
        where = await pin(delivery.target.url, private=settings.WEBHOOKS_PRIVATE)
        headers["host"] = where.authority
        sent = client.stream(
            "POST", where.url, content=body, headers=headers,
            extensions={"sni_hostname": where.host},
        )  # fmt: skip
        async with sent as answer:  # its body is nobody's business
            status = answer.status_code
    return Result("" if 200 <= status < 300 else f"It answered {status}.", status)


async def send_due(client: httpx.AsyncClient) -> int:
    """Try all that is due, as far as nobody else does; how many were tried."""
    now = timezone.now()
    taken: Sequence[Delivery] = await database_sync_to_async(claim)(now)

    async def one(delivery: Delivery) -> None:
        result = await attempt(client, delivery, now)
        await database_sync_to_async(record)(delivery, result, timezone.now())

    await asyncio.gather(*map(one, taken))
    return len(taken)


async def send() -> None:
    """Send what is due, until cancelled."""
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        timeout=ANSWER_S, follow_redirects=False, trust_env=False, limits=limits
    ) as client:
        while True:
            if not await send_due(client):
                await asyncio.sleep(EVERY_S)
