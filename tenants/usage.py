"""Writes the ledger in batches, off the token path."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import structlog
from django.db import (
    DataError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    connection,
    connections,
    models,
)

from inference.grants import UsageRecord
from tenants.models import AdapterVersion, ApiKey, UsageEvent

log = structlog.get_logger(__name__)

FLUSH_S = 0.2
BATCH = 1_000
CAPACITY = 200_000
"""Records kept in memory while PostgreSQL is away; about 100 MB at most."""
MAX_BACKOFF_S = 5.0
LAST_ATTEMPTS = 5
"""At exit; what is then still unwritten is logged as dropped."""


def event_of(record: UsageRecord) -> UsageEvent:
    usage = record.usage
    return UsageEvent(
        id=record.id,
        started_at=record.started_at,
        tenant_id=record.tenant_id,
        key_id=record.key_id,
        version_id=record.version_id,
        model=record.model,
        base_model=record.base_model,
        engine_id=record.engine_id,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        finish_reason=record.finish_reason,
        queue_s=usage.queue_s,
        load_s=usage.load_s,
        ttft_s=usage.ttft_s,
        total_s=usage.total_s,
    )


def write(records: Sequence[UsageRecord]) -> None:
    """Write the events; those already written stay as they are.

    A key or version deleted meanwhile leaves a gap in its event. An event that PostgreSQL will
    never take (its tenant is gone, a value is out of range) is logged and does not stop the others.

    Raises:
        OperationalError, InterfaceError: PostgreSQL is away; try all of them again.
    """
    events = [event_of(record) for record in records]
    try:
        UsageEvent.objects.bulk_create(events, ignore_conflicts=True)
    except (IntegrityError, DataError):
        _forget_deleted(events)
        for event in events:
            _write_alone(event)
    except (OperationalError, InterfaceError):
        connection.close()  # the next attempt connects anew
        raise


def _write_alone(event: UsageEvent) -> None:
    try:
        UsageEvent.objects.bulk_create([event], ignore_conflicts=True)
    except (IntegrityError, DataError) as error:
        fields = {field.attname: getattr(event, field.attname) for field in event._meta.fields}
        log.error("usage_not_written", error=str(error), **fields)


def _forget_deleted(events: list[UsageEvent]) -> None:
    def existing(model: type[models.Model], ids: set[int | None]) -> set[int]:
        return set(model._default_manager.filter(pk__in=ids - {None}).values_list("pk", flat=True))

    keys = existing(ApiKey, {event.key_id for event in events})
    versions = existing(AdapterVersion, {event.version_id for event in events})
    for event in events:
        event.key_id = event.key_id if event.key_id in keys else None
        event.version_id = event.version_id if event.version_id in versions else None


class BatchRecorder:
    """`inference.grants.Recorder`. Use as an async context manager; leaving it writes the rest.

    One batch is under way at a time, in a thread of its own. A failed one is tried again with
    back-off, which is safe because an event is written once under its id.
    """

    def __init__(
        self,
        write: Callable[[Sequence[UsageRecord]], None] = write,
        *,
        capacity: int = CAPACITY,
        last_attempts: int = LAST_ATTEMPTS,
    ) -> None:
        self._write = write
        self._capacity = capacity
        self._last_attempts = last_attempts
        self._buffer: deque[UsageRecord] = deque()
        self._dropped = 0
        self._full = asyncio.Event()
        self._closing = asyncio.Event()

    def record(self, record: UsageRecord) -> None:
        """Note the usage; returns at once, never blocks, never raises."""
        if len(self._buffer) >= self._capacity:
            self._dropped += 1
            return
        self._buffer.append(record)
        if len(self._buffer) >= BATCH:
            self._full.set()

    async def __aenter__(self) -> BatchRecorder:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="usage")
        self._task = asyncio.create_task(self._run(), name="usage")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        self._full.set()
        await self._task
        await asyncio.get_running_loop().run_in_executor(self._thread, connections.close_all)
        self._thread.shutdown()

    async def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            event, timeout_s = (
                (self._closing, _backoff_s(failures)) if failures else (self._full, FLUSH_S)
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), timeout_s)
            failures = 0 if await self._flush() else failures + 1
        for attempt in range(self._last_attempts):
            await asyncio.sleep(_backoff_s(attempt) if attempt else 0)
            if await self._flush():
                return
        self._dropped += len(self._buffer)
        self._buffer.clear()
        self._report_dropped()

    async def _flush(self) -> bool:
        """Write all there is; False where PostgreSQL did not take it."""
        self._report_dropped()
        loop = asyncio.get_running_loop()
        while self._buffer:
            self._full.clear()
            batch = list(islice(self._buffer, BATCH))
            try:
                await loop.run_in_executor(self._thread, self._write, batch)
            except Exception as error:  # whatever it is, the ledger's task must live
                log.error("usage_not_written_yet", waiting=len(self._buffer), error=str(error))
                return False
            for _ in batch:
                self._buffer.popleft()
        return True

    def _report_dropped(self) -> None:
        if self._dropped:
            log.error("usage_dropped", count=self._dropped)
            self._dropped = 0


def _backoff_s(failures: int) -> float:
    return min(MAX_BACKOFF_S, FLUSH_S * 2.0 ** min(failures, 10))
