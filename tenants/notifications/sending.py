"""Sends deliveries: a few at a time, each retried after ever longer pauses, for three days.

Webhooks are signed according to Standard Webhooks (https://www.standardwebhooks.com): the
notification's id stays the same over all attempts, so that a receiver can recognise a repeated one.
The deliveries of a worker that dies are taken by others after a LEASE: one may be sent twice, and
none is lost.

A tenant with slow receivers delays only itself: of the AT_ONCE deliveries that a worker tries at a
time, a tenant has at most OF_TENANT and a webhook one, and the next is taken as soon as one ends.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import httpx
import structlog
from channels.db import database_sync_to_async
from django.conf import settings
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from tenants.models.notifications import Delivery, DeliveryState, NotificationKind, Target
from tenants.notifications import mail
from tenants.notifications.addresses import Forbidden, pin

log = structlog.get_logger(__name__)

PAUSES = [timedelta(seconds=s) for s in (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)]
"""Pause after each attempt but the last, as Standard Webhooks suggests."""
LEASE = timedelta(seconds=60)
"""How long a delivery that a worker has taken is hidden from other workers."""
AT_ONCE = 20
OF_TENANT = 4
THREADS = 64
"""Threads that resolve names and send emails; a hanging lookup occupies one beyond its timeout."""
ANSWER_S = 10.0
EVERY_S = 2.0
MAX_ERROR = 300

DUE = """
WITH due AS (
    SELECT delivery.id, due_at, coalesce(notification.tenant_id, 0) AS whose, row_number() OVER
        (PARTITION BY target_id, user_id ORDER BY due_at, delivery.id) AS nth
    FROM tenants_delivery delivery
    JOIN tenants_notification notification ON notification.id = notification_id
    WHERE state = 'waiting' AND due_at <= %(now)s AND NOT coalesce(target_id = ANY(%(busy)s), false)
), turns AS (
    SELECT id, due_at, whose, row_number() OVER (PARTITION BY whose ORDER BY due_at, id) AS turn
    FROM due WHERE nth = 1
)
SELECT id FROM turns
WHERE turn <= %(of_tenant)s - coalesce((%(in_flight)s::jsonb ->> whose::text)::int, 0)
ORDER BY turn, due_at LIMIT %(room)s
"""
"""Tenants take turns; a tenant's webhooks and people are ordered by when their next one is due."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """The outcome of an attempt; delivered if `error` is empty."""

    error: str = ""
    status: int | None = None
    duration_ms: int | None = None


def sign(secrets: Sequence[str], id: str, at: int, body: bytes) -> str:
    """The value of `webhook-signature`: a signature by each secret."""
    signed = f"{id}.{at}.".encode() + body
    keys = (base64.b64decode(secret.removeprefix("whsec_")) for secret in secrets)
    digests = (hmac.digest(key, signed, "sha256") for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def payload_of(delivery: Delivery) -> dict[str, Any]:
    notification = delivery.notification
    tenant = {} if notification.tenant is None else {"tenant": notification.tenant.slug}
    data = {**tenant, **notification.data}
    return {"type": notification.kind, "timestamp": notification.at.isoformat(), "data": data}


def claim(now: datetime, in_flight: Collection[Delivery] = ()) -> list[Delivery]:
    """Take deliveries that are due, for a LEASE, as many as those in flight leave room for."""
    values: dict[str, Any] = {
        "now": now,
        "busy": [one.target_id for one in in_flight if one.target_id],
        "in_flight": json.dumps(Counter(one.notification.tenant_id or 0 for one in in_flight)),
        "of_tenant": OF_TENANT,
        "room": AT_ONCE - len(in_flight),
    }
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(DUE, values)
            due = [row[0] for row in cursor.fetchall()]
        waiting = Delivery.objects.filter(pk__in=due, state=DeliveryState.WAITING, due_at__lte=now)
        taken = list(
            waiting.select_for_update(skip_locked=True, of=("self",)).select_related(
                "target", "user", "notification__tenant"
            )
        )
        Delivery.objects.filter(pk__in=[one.pk for one in taken]).update(due_at=now + LEASE)
    return taken


def record(delivery: Delivery, result: SendResult, now: datetime) -> None:
    """Record the outcome of an attempt, and when to try again."""
    attempts = delivery.attempts + 1
    gone = result.status == 410
    fields: dict[str, Any] = {"state": DeliveryState.DELIVERED}
    if result.error:
        test = delivery.notification.kind == NotificationKind.WEBHOOK_TEST
        last = gone or test or attempts > len(PAUSES)
        fields["state"] = DeliveryState.FAILED if last else DeliveryState.WAITING
        fields["due_at"] = now if last else now + PAUSES[attempts - 1]
    Delivery.objects.filter(pk=delivery.pk).update(
        attempts=F("attempts") + 1,
        tried_at=now,
        status=result.status,
        duration_ms=result.duration_ms,
        error=result.error.replace("\0", "")[:MAX_ERROR],
        **fields,
    )
    if gone and delivery.target is not None:
        Target.objects.filter(pk=delivery.target.pk, ended_at=None).update(ended_at=now)
    log.info(
        "notification_sent" if not result.error else "notification_not_sent",
        id=str(delivery.notification_id), kind=delivery.notification.kind,
        target=delivery.target_id, user=delivery.user_id, status=result.status,
        error=result.error or None,
    )  # fmt: skip


class Sender:
    """Sends deliveries concurrently."""

    def __init__(self, client: httpx.AsyncClient, threads: Executor | None = None) -> None:
        self._client, self._threads = client, threads
        self._in_flight: dict[asyncio.Task[None], Delivery] = {}

    async def start_due(self) -> int:
        """Start the deliveries that are due, as far as there is room. Returns how many."""
        if mail.is_sent():
            await database_sync_to_async(mail.address)(timezone.now())
        now, in_flight = timezone.now(), list(self._in_flight.values())
        if len(in_flight) >= AT_ONCE:
            return 0
        taken = await database_sync_to_async(claim)(now, in_flight)
        for delivery in taken:
            task = asyncio.create_task(self._deliver(delivery, now))
            self._in_flight[task] = delivery
            task.add_done_callback(self._ended)
        return len(taken)

    async def pause(self) -> None:
        """Wait until a delivery ends, at most EVERY_S."""
        if self._in_flight:
            await asyncio.wait(
                {*self._in_flight}, timeout=EVERY_S, return_when=asyncio.FIRST_COMPLETED
            )
        else:
            await asyncio.sleep(EVERY_S)

    async def finish(self) -> None:
        """Wait until all deliveries have ended."""
        while self._in_flight:
            await self.pause()

    def stop(self) -> None:
        """Cancel the deliveries, leaving them to another worker."""
        for task in self._in_flight:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        delivery = self._in_flight.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("delivery_failed", delivery=delivery.pk, exc_info=error)

    async def _deliver(self, delivery: Delivery, now: datetime) -> None:
        began = time.monotonic()
        result = await self.attempt(delivery, now)
        result = replace(result, duration_ms=round((time.monotonic() - began) * 1000))
        await database_sync_to_async(record)(delivery, result, timezone.now())

    async def attempt(self, delivery: Delivery, now: datetime) -> SendResult:
        """Try to deliver. Never raises for a failed attempt."""
        try:
            if delivery.target is not None:
                return await self._post(delivery, delivery.target, now)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, mail.send, delivery)
            return SendResult()
        except Forbidden as error:
            return SendResult(str(error))
        # Includes errors for a URL, a certificate or an address that a library rejects: none of
        # them may block other deliveries.
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return SendResult(str(error) or type(error).__name__)

    async def _post(self, delivery: Delivery, target: Target, now: datetime) -> SendResult:
        body = json.dumps(payload_of(delivery), separators=(",", ":")).encode()
        id, at = delivery.notification.message_id, int(now.timestamp())
        headers = {
            "content-type": "application/json",
            "user-agent": "Lorikeet",
            "webhook-id": id,
            "webhook-timestamp": str(at),
            "webhook-signature": sign(target.signing_secrets(now), id, at, body),
        }
        async with asyncio.timeout(ANSWER_S):
            where = await pin(target.url, private=settings.WEBHOOKS_PRIVATE, threads=self._threads)
            headers["host"] = where.authority
            sent = self._client.stream(
                "POST", where.url, content=body, headers=headers,
                extensions={"sni_hostname": where.host},
            )  # fmt: skip
            async with sent as answer:  # its body is never read
                status = answer.status_code
        return SendResult("" if 200 <= status < 300 else f"The webhook answered {status}.", status)


async def send() -> None:
    """Send due deliveries, until cancelled."""
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="notifications")
    async with httpx.AsyncClient(
        timeout=ANSWER_S, follow_redirects=False, trust_env=False, limits=limits
    ) as client:
        sender = Sender(client, threads)
        try:
            while True:
                if not await sender.start_due():
                    await sender.pause()
        finally:
            sender.stop()
            threads.shutdown(wait=False, cancel_futures=True)
