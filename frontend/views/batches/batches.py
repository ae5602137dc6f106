"""A tenant's batches: the list, and one with its progress, errors and files."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.db.models import Sum
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from frontend import bulk
from frontend.lists import older_than, page_of, words_of
from frontend.pages import tenant_page
from frontend.views.adapters.fingerprints import hashed, not_modified
from inference.errors import BatchEnded
from inference.gateway.lines.seals import line_id
from tenants.batch_states import ENDED, Status
from tenants.files.content import answer_with
from tenants.models import AuditEntry, Batch, StoredFile, Tenant
from tenants.models.audit import actor_of
from tenants.permissions import Caller, Permission

FILES = {"input": "Requests", "output": "Answers", "error": "Errors"}
"""Titles of a batch's files, by their fields without `_file`."""
CANCELLABLE = (Status.VALIDATING, Status.IN_PROGRESS)
CANCEL = bulk.Action(
    "Cancel batches",
    "Cancel the selected batches?",
    "Answers so far are kept. Lines that have not started cost nothing.",
)
ROUNDED = timedelta(milliseconds=1)
"""By how much a line's start in the ledger may differ from the batch's creation."""


@never_cache
@require_GET
@tenant_page(Permission.USE_FILES)
def batches(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The list, newest first."""
    found, after = caller.tenant.batches.select_related("key"), words_of(request, "after")
    if before := found.filter(pk=after).first():
        found = older_than(found, before, "created_at")
    rows, last = page_of(found)
    fingerprint = _fingerprint(rows)
    if not_modified(request, fingerprint):
        return HttpResponse(status=304)
    context = {
        "rows": [(row, row.status in CANCELLABLE) for row in rows],
        "last": last,
        "fingerprint": fingerprint,
        "paged": bool(after),
        "bulk": [CANCEL.of("batches-cancel-some", caller.tenant.slug)],
    }
    return render(request, "batches/batches.html", context)


@never_cache
@require_GET
@tenant_page(Permission.USE_FILES)
def batch(request: HttpRequest, caller: Caller, batch_id: str) -> HttpResponse:
    """One batch."""
    return render(request, "batches/batch.html", state(caller.tenant, batch_id))


@require_POST
@tenant_page(Permission.USE_FILES)
def cancel(request: HttpRequest, caller: Caller, batch_id: str) -> HttpResponse:
    """Cancel the batch; it keeps the answers that it has."""
    found = _of(caller.tenant, batch_id)
    try:
        found.cancel()
    except BatchEnded:
        messages.error(request, "The batch had already ended.")
    else:
        note(request, caller, "cancelled batch", found.pk)
        messages.success(request, "Batch cancelled. Finished requests keep their results.")
    return redirect("batches-one", caller.tenant.slug, found.pk)


@require_POST
@tenant_page(Permission.USE_FILES)
def cancel_some(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Cancel the chosen batches; they keep the answers that they have."""

    def one(id: str) -> None:
        found = _of(caller.tenant, id)
        found.cancel()
        note(request, caller, "cancelled batch", found.pk)

    bulk.act(request, one, "batch,batches", "cancelled")
    return redirect("batches", caller.tenant.slug)


@require_GET
@tenant_page(Permission.USE_FILES)
def download(request: HttpRequest, caller: Caller, batch_id: str, role: str) -> HttpResponseBase:
    """One of its files."""
    if role not in FILES:
        raise Http404
    id = getattr(_of(caller.tenant, batch_id), f"{role}_file_id")
    file = get_object_or_404(caller.tenant.files.current(), pk=id)
    note(request, caller, "downloaded file", file.pk)
    return answer_with(file, attached=True)


def state(tenant: Tenant, batch_id: str) -> dict[str, Any]:
    """Context of the live part of a batch's page."""
    found = _of(tenant, batch_id)
    ids = {role: getattr(found, f"{role}_file_id") for role in FILES}
    kept = StoredFile.objects.current().in_bulk([id for id in ids.values() if id])
    return {
        "batch": found,
        "slug": tenant.slug,
        "ended": found.status in ENDED,
        "may_cancel": found.status in CANCELLABLE,
        "cost": _cost(found),
        "largest": max((file.size_bytes for file in kept.values()), default=0),
        "files": [(role, title, kept.get(ids[role])) for role, title in FILES.items() if ids[role]],
    }


def _fingerprint(rows: Iterable[Batch]) -> str:
    """A value that changes whenever the list does, apart from its relative times."""
    states = [(row.pk, row.status, row.done) for row in rows]
    return hashed(states)


def _of(tenant: Tenant, batch_id: str) -> Batch:
    found = tenant.batches.select_related("key", "tenant")
    return get_object_or_404(found, pk=batch_id.replace("\0", ""))


def _cost(batch: Batch) -> int:
    """The cost of its lines that are in the ledger so far, in pico-units."""
    first, last = line_id(batch.pk, 0), line_id(batch.pk, 0xFFFFFFFF)
    began = batch.created_at - ROUNDED, batch.created_at + ROUNDED
    events = batch.tenant.usage.filter(started_at__range=began, id__gte=first, id__lte=last)
    return int(events.aggregate(cost=Sum("cost", default=0))["cost"])


def note(request: HttpRequest, caller: Caller, action: str, name: str) -> None:
    """Log what the caller did, with the id of the batch or file."""
    actor = actor_of(request)
    assert actor is not None, "tenant_page lets nobody else in"
    AuditEntry.objects.note(actor, caller.tenant, action, name)
