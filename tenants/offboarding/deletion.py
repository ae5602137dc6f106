"""Deletes a tenant after its grace period: everything but the ledger, with a signed receipt.

A tenant is suspended as soon as its deletion is asked for, and active again if that is taken back.
When the deletion is due, its content key is destroyed first. Then rows are deleted a batch at a
time, files before their rows, each batch in a transaction that counts it: a run that is killed goes
on where it was, and nothing is counted twice. Two runs at once take turns.

The tenant's row and slug stay for the ledger, so no other tenant gets the slug: receipts, LoRA
names and the audit log name it. The name, and the secret of its prefix caches, are overwritten.
Entries of the audit log keep their time, actor and action, and the kind and id of their subject;
its name, the address and the changed values are removed. Only the entries of the deletion itself
stay whole. The database refuses any other change of the log (`sql/audit.sql`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.core.mail import EmailMessage
from django.db import models, transaction
from django.db.models import Q, Sum
from django.utils import timezone

from tenants.adapters import store
from tenants.adapters.uploads import parts
from tenants.billing.receipts import signer
from tenants.content import retention
from tenants.errors import NoContentKey, NotBeingDeleted
from tenants.files import blobs
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
    Membership,
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
    Role,
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
from tenants.models.accounts import new_cache_secret
from tenants.notifications import mail
from tenants.permissions import Caller, NotPermitted

log = structlog.get_logger(__name__)

TYPE = "lorikeet-tenant-deleted+json"
FORMAT = "lorikeet-tenant-deleted-1"
OBJECT = "tenant.deleted"
DELETION_KIND = "deletion"
"""Of entries of the audit log."""
BATCH, BATCH_WITH_FILES = 1000, 50
LATE = timedelta(hours=1)
"""Gateways write figures of a tenant's last requests after these have ended: for so long after a
deletion such rows are deleted too."""
KEPT: Mapping[type[models.Model], str] = {
    AuditEntry: "without names, addresses and values",
    ContentKey: "the confirmations that keys were destroyed, without the keys",
    Price: "the ledger: prices that were paid",
    Tenant: "the ledger: the slug, which receipts name",
    TenantDeletion: "the receipt of the deletion",
    TenantSum: "the ledger",
    UsageEvent: "the ledger",
    UsageMonth: "the ledger",
    UsageRollup: "the ledger",
    UsageSum: "the ledger",
    UsageTotal: "the ledger",
}
"""The models whose rows stay, with the reason; those of all others that belong to a tenant have a
step (a test requires it)."""
Report = Callable[[str], None]


def _clear_bytes(ids: Iterable[str]) -> None:
    for id in ids:
        blobs.remove(id)


def _clear_versions(ids: list[int]) -> None:
    """Delete the files here, so that no job has to do it after the receipt."""
    found = AdapterVersion.objects.filter(pk__in=ids)
    for folder in found.exclude(folder="").values_list("folder", flat=True):
        store.remove(folder)
    found.update(folder="")


@dataclass(frozen=True)
class DeletionStep:
    """Rows to delete, by their name in the receipt: those of which the path of fields leads to the
    tenant. `clear` first deletes the files of the rows with these keys."""

    name: str
    model: type[models.Model]
    path: str
    clear: Callable[[list[Any]], None] | None = None

    @property
    def batch(self) -> int:
        """Rows deleted in one transaction: fewer if they have files, which takes longer."""
        return min(BATCH, BATCH_WITH_FILES) if self.clear else BATCH

    def rows(self, tenant: Tenant) -> models.QuerySet[Any]:
        return self.model._default_manager.filter(**{self.path: tenant}).order_by()


STEPS = (
    DeletionStep("background_responses", BackgroundResponse, "tenant"),
    DeletionStep("stored_content", StoredContent, "tenant"),
    DeletionStep("repeatable_answers", IdempotentAnswer, "key__tenant"),
    DeletionStep("batch_lines", BatchLine, "batch__tenant"),
    DeletionStep("batches", Batch, "tenant"),
    DeletionStep("fine_tuning_events", TuningEvent, "job__tenant"),
    DeletionStep("fine_tuning_checkpoints", TuningCheckpoint, "job__tenant"),
    DeletionStep("fine_tuning_jobs", FineTuningJob, "tenant", _clear_bytes),
    DeletionStep("gates", PromotionGate, "adapter__tenant"),
    DeletionStep("routes", Route, "tenant"),
    DeletionStep("eval_items", EvalItem, "run__eval__tenant"),
    DeletionStep("eval_runs", EvalRun, "eval__tenant"),
    DeletionStep("evals", Eval, "tenant"),
    DeletionStep("upload_parts", UploadPart, "upload__tenant", _clear_bytes),
    DeletionStep("uploads", Upload, "tenant"),
    DeletionStep("files", StoredFile, "tenant", _clear_bytes),
    DeletionStep("archives", TenantExport, "tenant", _clear_bytes),
    DeletionStep("adapter_upload_chunks", UploadChunk, "upload__tenant", parts.remove_bytes),
    DeletionStep("adapter_uploads", UploadSession, "tenant"),
    DeletionStep("limits", LimitSet, "tenant"),
    DeletionStep("split_requests", SplitRequest, "split__adapter__tenant"),
    DeletionStep("splits", Split, "adapter__tenant"),
    DeletionStep("aliases", Alias, "adapter__tenant"),
    DeletionStep("trials", Trial, "version__adapter__tenant"),
    DeletionStep("adapter_versions", AdapterVersion, "adapter__tenant", _clear_versions),
    DeletionStep("adapters", Adapter, "tenant"),
    DeletionStep("deliveries", Delivery, "notification__tenant"),
    DeletionStep("notifications", Notification, "tenant"),
    DeletionStep("webhooks", Target, "tenant"),
    DeletionStep("muted_notifications", Muted, "tenant"),
    DeletionStep("read_marks", ReadMark, "tenant"),
    DeletionStep("alert_rules", AlertRule, "tenant"),
    DeletionStep("prompt_set_runs", SetRun, "member__tenant"),
    DeletionStep("prompt_sets", PromptSet, "member__tenant"),
    DeletionStep("saved_prompts", SavedPrompt, "member__tenant"),
    DeletionStep("saved_views", SavedView, "member__tenant"),
    DeletionStep("conversations", Conversation, "member__tenant"),
    DeletionStep("invitations", Invitation, "tenant"),
    DeletionStep("members", Membership, "tenant"),
    DeletionStep("api_keys", ApiKey, "tenant"),
    DeletionStep("rollout_turns", RolloutTenant, "tenant"),
    DeletionStep("request_tags", RequestTag, "tenant"),
    DeletionStep("request_scores", RequestScore, "tenant"),
    DeletionStep("refused_requests", RefusedRequest, "tenant"),
    DeletionStep("request_minutes", RequestMinute, "tenant"),
    DeletionStep("request_hours", RequestHour, "tenant"),
    DeletionStep("total_minutes", TotalMinute, "tenant"),
    DeletionStep("total_hours", TotalHour, "tenant"),
)
"""What is deleted, in an order in which nothing refers to what is gone."""


def ask(caller: Caller) -> TenantDeletion:
    """Have the caller's tenant deleted after the grace period; it is suspended now.

    Raises:
        TenantBeingDeleted: that was asked for before.
        NotDeletable: it is one of the installation's own tenants.
    """
    assert caller.user is not None, "keys may not delete"
    return TenantDeletion.objects.ask(
        caller.tenant,
        by=caller.user.get_username(),
        by_operator=caller.role != Role.OWNER,
        grace=timedelta(days=settings.DELETION_GRACE_DAYS),
    )


def may_take_back(caller: Caller, deletion: TenantDeletion) -> bool:
    """An owner may not take back what an operator asked for."""
    return caller.operator or not deletion.by_operator


def take_back(caller: Caller) -> None:
    """Let the caller's tenant be as it was before.

    Raises:
        NotBeingDeleted: nobody asked for its deletion.
        NotPermitted: an operator asked for it, and the caller is none.
        DeletionBegun: its data is being deleted, or was.
    """
    asked = TenantDeletion.objects.of(caller.tenant)
    if asked is None:
        raise NotBeingDeleted
    if not may_take_back(caller, asked):
        message = "Only operators may take back a deletion that an operator asked for."
        raise NotPermitted(message, "insufficient_permissions")
    asked.take_back()


def due() -> models.QuerySet[TenantDeletion]:
    """The deletions that have something to do now."""
    now = timezone.now()
    undone = Q(ended_at=None) | Q(ended_at__gt=now - LATE) | ~Q(owners=[])
    return TenantDeletion.objects.filter(undone, due_at__lte=now)


def run(deletion: TenantDeletion, report: Report) -> None:
    """Delete the tenant, if that is due; does nothing that is done already. `report` is called
    after each batch; what it raises ends the run, which can be run again.

    Raises:
        OSError: files or a mail server are not available; it can be run again.
    """
    if not deletion.begin():
        return
    tenant = deletion.tenant
    with suppress(NoContentKey):
        retention.destroy(tenant, deletion.asked_by)
    for step in STEPS:
        count = 0
        for deleted in _batches(deletion, step):
            report(f"{step.name}: {(count := count + deleted):,}")
    store.remove_all(tenant.slug)
    if deletion.ended_at is None:
        _forget(tenant)
    if redacted := _redact(tenant):
        report(f"audit entries without details: {redacted:,}")
    if deletion.ended_at is None:
        _end(deletion)
        log.info("tenant_deleted", tenant=tenant.slug)
    _tell(deletion)


def _batches(deletion: TenantDeletion, step: DeletionStep) -> Iterator[int]:
    """Delete the step's rows; yields the number of each batch."""
    while True:
        with transaction.atomic():
            locked = TenantDeletion.objects.select_for_update().get(pk=deletion.pk)
            ids = list(step.rows(deletion.tenant).values_list("pk", flat=True)[: step.batch])
            if not ids:
                return
            if step.clear:
                step.clear(ids)
            step.model._default_manager.filter(pk__in=ids).delete()
            if locked.ended_at is None:
                locked.counts[step.name] = locked.counts.get(step.name, 0) + len(ids)
                locked.save(update_fields=["counts"])
        yield len(ids)


def _forget(tenant: Tenant) -> None:
    """Overwrite what the ledger does not need of the tenant."""
    tenant.name, tenant.cache_secret = tenant.slug, new_cache_secret()
    tenant.max_stored_bytes = tenant.max_versions = None
    tenant.save(update_fields=["name", "cache_secret", "max_stored_bytes", "max_versions"])


def _redact(tenant: Tenant) -> int:
    """Remove details from the tenant's audit log."""
    last, count = 0, 0
    done = Q(kind=DELETION_KIND) | Q(name="", address="", before__isnull=True, after__isnull=True)
    found = AuditEntry.objects.filter(tenant=tenant).exclude(done).order_by("pk")
    while ids := list(found.filter(pk__gt=last).values_list("pk", flat=True)[:BATCH]):
        rows = AuditEntry.objects.filter(pk__in=ids)
        rows.update(name="", address="", before=None, after=None)
        last, count = ids[-1], count + len(ids)
    return count


def _end(deletion: TenantDeletion) -> None:
    with transaction.atomic():
        locked = TenantDeletion.objects.select_for_update().get(pk=deletion.pk)
        if locked.ended_at is None:
            locked.ended_at = timezone.now()
            locked.receipt = signer().jws(TYPE, _receipt(locked))
            locked.save(update_fields=["ended_at", "receipt"])
    deletion.refresh_from_db()


def _receipt(deletion: TenantDeletion) -> dict[str, Any]:
    """The receipt. All numbers are integers, as in receipts of requests."""
    months = UsageMonth.objects.filter(tenant=deletion.tenant_id)
    ledger = months.aggregate(requests=Sum("requests", default=0), cost=Sum("cost", default=0))
    assert deletion.started_at is not None and deletion.ended_at is not None
    return {
        "format": FORMAT,
        "tenant": deletion.tenant.slug,
        "asked_by": deletion.asked_by,
        "asked_at": _written(deletion.asked_at),
        "due_at": _written(deletion.due_at),
        "started_at": _written(deletion.started_at),
        "ended_at": _written(deletion.ended_at),
        "deleted": deletion.counts,
        "kept": {"requests": int(ledger["requests"]), "cost_pico": int(ledger["cost"])},
    }


def _written(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _tell(deletion: TenantDeletion) -> None:
    """Send the receipt to those who were owners, and forget their addresses."""
    if mail.is_sent():
        for address in deletion.owners:
            _mail(deletion, address).send()
    deletion.owners = []
    deletion.save(update_fields=["owners"])


def _mail(deletion: TenantDeletion, address: str) -> EmailMessage:
    slug = deletion.tenant.slug
    text = (
        f"Everything of the tenant {slug} was deleted, except for the ledger of what was billed.\n"
        "\n"
        "The attached file says what was deleted, and is signed. It can be verified with the keys "
        f"at\n{settings.API_URL}/v1/usage/receipts/jwks.json\n"
        "\n"
        f"You receive this email because you were an owner of {slug}.\n"
    )
    message = EmailMessage(f"The tenant {slug} was deleted", text, None, [address])
    body = json.dumps(deletion.signed, indent=2)
    message.attach(f"deleted-{slug}.json", body, "application/json")
    return message
