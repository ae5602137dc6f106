"""What an archive of a tenant has: which rows, and which columns of them.

Each model with a path to the tenant is in `sections`, or in LEFT_OUT with the reason (a test
requires it). Columns with bytes are never written: they are secrets or encrypted.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import models, transaction

from tenants.billing.receipts import describe, signer
from tenants.content import sealing
from tenants.content.sealing import Location, TenantKey, Unreadable
from tenants.models import (
    Adapter,
    AdapterVersion,
    AlertRule,
    Alias,
    ApiKey,
    AuditEntry,
    BackgroundResponse,
    Batch,
    BatchLine,
    ContentKey,
    Conversation,
    Delivery,
    Eval,
    EvalItem,
    EvalRun,
    FineTuningJob,
    IdempotentAnswer,
    Invitation,
    LimitSet,
    Muted,
    Notification,
    Price,
    PromotionGate,
    PromptSet,
    ReadMark,
    RefusedRequest,
    RequestHour,
    RequestMinute,
    RequestScore,
    RequestTag,
    RolloutTenant,
    Route,
    SavedPrompt,
    SavedView,
    SetRun,
    Split,
    SplitRequest,
    StoredContent,
    StoredFile,
    Target,
    Tenant,
    TenantDeletion,
    TenantExport,
    TenantSum,
    TotalHour,
    TotalMinute,
    Trial,
    TuningCheckpoint,
    TuningEvent,
    Upload,
    UploadChunk,
    UploadPart,
    UploadSession,
    UsageEvent,
    UsageMonth,
    UsageRollup,
    UsageSum,
    UsageTotal,
)

Row = dict[str, Any]
Reader = Callable[[models.QuerySet[Any]], Iterator[Row]]
BY = ("created_by__username",)
ROWS, LARGE_ROWS = 1000, 20
"""Rows in memory at a time; large ones have up to half a megabyte each."""
LEFT_OUT: Mapping[type[models.Model], str] = {
    IdempotentAnswer: "answers that are kept for a day, for requests that are repeated",
    ReadMark: "how far members have read notifications",
    RequestMinute: "figures by the minute: `request_hours.jsonl` has their sums",
    RolloutTenant: "the operator's plans and tests",
    TenantDeletion: "a request to delete the tenant",
    TenantExport: "other archives",
    TenantSum: "sums of `usage_hours.jsonl`",
    TotalHour: "sums of `request_hours.jsonl`",
    TotalMinute: "figures by the minute: `request_hours.jsonl` has their sums",
    SplitRequest: "requests of splits while these run: `splits.jsonl` has what was found",
    Trial: "the operator's plans and tests",
    Upload: "unfinished uploads",
    UploadChunk: "unfinished uploads",
    UploadPart: "unfinished uploads",
    UploadSession: "unfinished uploads",
    UsageSum: "sums of `usage_hours.jsonl`",
    UsageTotal: "sums of `usage_hours.jsonl`",
}
"""The models of which an archive has no rows, and what its README says of them."""


@dataclass(frozen=True)
class Section:
    """A file of rows. `private`: only members read these, so an operator's archive lacks them;
    `without` names columns that are left out, `also` expressions that are added."""

    name: str
    rows: models.QuerySet[Any]
    without: frozenset[str] = frozenset()
    also: tuple[str, ...] = ()
    private: bool = False
    read: Reader | None = field(default=None)

    def __iter__(self) -> Iterator[Row]:
        with transaction.atomic():  # a cursor outside of one would first collect all rows
            yield from self.read(self.rows) if self.read else self._columns()

    def _columns(self) -> Iterator[Row]:
        names = [
            column.attname
            for column in self.rows.model._meta.concrete_fields
            if not isinstance(column, models.BinaryField) and column.name not in self.without
        ]
        yield from self.rows.values(*names, *self.also).iterator(chunk_size=ROWS)


def sections(tenant: Tenant) -> list[Section]:
    """Everything that is the tenant's."""
    of_members, mine = {"member__tenant": tenant}, {"tenant": tenant}
    people = tenant.memberships.order_by("pk")
    return [
        Section("tenant", Tenant.objects.filter(pk=tenant.pk), frozenset({"internal"})),
        Section("members", people, also=("user__username", "user__email")),
        Section("invitations", _all(Invitation, **mine)),
        Section("keys", _all(ApiKey, **mine)),
        Section("limits", _all(LimitSet, **mine)),
        Section("adapters", _all(Adapter, **mine), also=("base_model__name",)),
        Section("versions", _versions(tenant), frozenset({"folder"}), ("adapter__name",)),
        Section("aliases", _all(Alias, adapter__tenant=tenant), also=("adapter__name",)),
        Section("splits", _all(Split, adapter__tenant=tenant), frozenset({"tests"})),
        Section("gates", _all(PromotionGate, adapter__tenant=tenant)),
        Section("routes", _all(Route, **mine)),
        Section("prices", _all(Price, adapter__tenant=tenant)),
        Section("files", _all(StoredFile, **mine)),
        Section("batches", _all(Batch, **mine), frozenset({"seal"})),
        Section("batch_lines", _all(BatchLine, batch__tenant=tenant), read=_lines),
        Section("fine_tuning_jobs", _all(FineTuningJob, **mine), also=("base_model__name",)),
        Section("fine_tuning_events", _all(TuningEvent, job__tenant=tenant)),
        Section("fine_tuning_checkpoints", _all(TuningCheckpoint, job__tenant=tenant)),
        Section("evals", _all(Eval, **mine)),
        Section("eval_runs", _all(EvalRun, eval__tenant=tenant)),
        Section("eval_items", _all(EvalItem, run__eval__tenant=tenant)),
        Section("background_responses", _all(BackgroundResponse, **mine), SEALED),
        Section("webhooks", _all(Target, **mine), frozenset({"secrets"})),
        Section("notifications", _all(Notification, **mine)),
        Section("alert_rules", _all(AlertRule, **mine)),
        Section("deliveries", _all(Delivery, notification__tenant=tenant)),
        Section("muted", _all(Muted, **mine), also=("user__username",)),
        Section("content_keys", _all(ContentKey, **mine)),
        _saved("saved_views", _all(SavedView, **of_members)),
        _saved("saved_prompts", _all(SavedPrompt, **of_members)),
        _saved("prompt_sets", _all(PromptSet, **of_members)),
        _saved("prompt_set_runs", _all(SetRun, **of_members)),
        _saved("conversations", _all(Conversation, **of_members)),
        Section("stored_content", _contents(tenant), private=True, read=_opened),
        Section("usage_events", _events(tenant)),
        Section("receipts", _events(tenant), read=_receipts),
        Section("usage_hours", UsageRollup.objects.filter(**mine).order_by("hour", "pk")),
        Section("usage_months", UsageMonth.objects.filter(**mine).order_by("month", "pk")),
        Section("request_hours", RequestHour.objects.filter(**mine).order_by("at", "pk")),
        Section("refused_requests", _all(RefusedRequest, **mine)),
        Section("request_tags", _all(RequestTag, **mine), also=BY),
        Section("request_scores", _all(RequestScore, **mine), also=BY),
        Section("audit_log", _all(AuditEntry, **mine)),
    ]


def _saved(name: str, rows: models.QuerySet[Any]) -> Section:
    """What members saved for themselves, with whose it is."""
    return Section(name, rows, also=("member__user__username",), private=True)


SEALED = frozenset({"seal", "once"})


def _all(model: type[models.Model], **which: Any) -> models.QuerySet[Any]:
    return model._default_manager.filter(**which).order_by("pk")


def _versions(tenant: Tenant) -> models.QuerySet[AdapterVersion]:
    return AdapterVersion.objects.filter(adapter__tenant=tenant).order_by("pk")


def _events(tenant: Tenant) -> models.QuerySet[UsageEvent]:
    return UsageEvent.objects.filter(tenant=tenant).order_by("started_at", "id")


def _receipts(events: models.QuerySet[UsageEvent]) -> Iterator[Row]:
    sign = signer().sign
    found = events.select_related("tenant", "version")
    yield from (sign(describe(event)) for event in found.iterator(chunk_size=ROWS))


def _lines(lines: models.QuerySet[BatchLine]) -> Iterator[Row]:
    for line in lines.iterator(chunk_size=LARGE_ROWS):
        fields = {"batch_id": line.batch_id, "number": line.number, "status_code": line.status_code}
        yield fields | {"body": _text(bytes(line.body))}


def _contents(tenant: Tenant) -> models.QuerySet[StoredContent]:
    """In any order: sorting would write all of it to disk."""
    return StoredContent.objects.live().filter(tenant=tenant).order_by()


def _opened(contents: models.QuerySet[StoredContent]) -> Iterator[Row]:
    """Stored content, decrypted."""
    keys = dict[int, TenantKey]()
    for one in contents.select_related("content_key").iterator(chunk_size=LARGE_ROWS):
        fields = {"kind": one.kind, "name": one.name, "at": one.at, "expires_at": one.expires_at}
        try:
            text = _key(keys, one.content_key).open(_location(one), bytes(one.data))
        except Unreadable:
            yield fields | {"unreadable": True}
        else:
            yield fields | {"text": _text(text)}


def _key(known: dict[int, TenantKey], key: ContentKey) -> TenantKey:
    if key.pk not in known:
        wrapped = bytes(key.wrapped or b"")
        known[key.pk] = sealing.tenant_key(sealing.master_keys(), key.tenant_id, wrapped)
    return known[key.pk]


def _location(one: StoredContent) -> Location:
    return Location(one.tenant_id, one.kind, one.name)


def _text(data: bytes) -> str:
    """The bytes as text; in base64 if they are none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


def exported() -> Iterable[type[models.Model]]:
    """The models that have a section, or files."""
    return {section.rows.model for section in sections(Tenant(pk=0))}
