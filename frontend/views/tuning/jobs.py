"""A tenant's fine-tuning jobs: the list, and one with its losses, checkpoints and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from frontend.lists import older_than, page_of, words_of
from frontend.pages import tenant_page
from frontend.views.adapters.fingerprints import hashed, not_modified
from frontend.views.batches.batches import ROUNDED, note
from frontend.views.tuning.curve import HEIGHT, WIDTH, LossCurve
from inference.errors import InferenceError, TuningNotPossible
from tenants.models import ApiKey, AuditEntry, EvalRun, FineTuningJob, Tenant, UsageEvent
from tenants.models.audit import actor_of
from tenants.models.evals import EvalStatus
from tenants.models.tuning import AUDITED
from tenants.permissions import Caller, Permission
from tenants.tuning import comparison, jobs
from tenants.tuning_states import ENDED, TuningStatus, before

EVENTS = 50
"""Events per page."""
CHANGES: Mapping[str, tuple[Callable[[FineTuningJob], None], str]] = {
    "pause": (jobs.pause, "Paused. A trainer goes on with it from there once it is resumed."),
    "resume": (jobs.resume, "Resumed. It waits for a trainer."),
    "cancel": (jobs.cancel, "Cancelled. Nothing of it is kept."),
}
"""By the name of each change: what makes it, and the message shown then."""


@never_cache
@require_GET
@tenant_page(Permission.EDIT_ADAPTERS)
def tuning(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The list, newest first."""
    found, after = caller.tenant.tuning_jobs.all(), words_of(request, "after")
    if newer := found.filter(pk=after).first():
        found = older_than(found, newer, "created_at")
    rows, last = page_of(found.select_related("base_model", "training_file"))
    fingerprint = hashed([(row.pk, row.status, row.metrics) for row in rows])
    if not_modified(request, fingerprint):
        return HttpResponse(status=304)
    context = {"rows": rows, "last": last, "paged": bool(after), "fingerprint": fingerprint}
    return render(request, "tuning/jobs.html", context)


@never_cache
@require_GET
@tenant_page(Permission.EDIT_ADAPTERS)
def job(request: HttpRequest, caller: Caller, job_id: str) -> HttpResponse:
    """One job; its events are listed newest first."""
    found = _of(caller.tenant, job_id)
    events, after = found.events.all(), words_of(request, "after")
    newest = events.values_list("pk", flat=True).first()
    version = found.version
    compared = comparison.runs_of(found)
    runs = [(run.pk, run.status) for run in compared]
    fingerprint = hashed(found.status, newest, version and version.state, runs)
    if not_modified(request, fingerprint):
        return HttpResponse(status=304)
    if after and (newer := events.filter(pk=after).first()):
        events = older_than(events, newer, "created_at")
    rows, last = page_of(events, EVENTS)
    files = comparison.files_of(found)
    context = {
        "job": found,
        "version": version,
        "curve": LossCurve.of(found),
        "line": _line(found),
        "width": WIDTH,
        "height": HEIGHT,
        "files": files,
        "changes": [*_possible(found)],
        "checkpoints": found.checkpoints.all(),
        "rows": rows,
        "last": last,
        "fingerprint": fingerprint,
        "compared": compared,
        "comparison": _comparison(compared),
        "hindrance": comparison.hindrance(found, files) if found.version_id else "",
        "can_compare": not compared or not all(map(comparison.is_asked, compared)),
    }
    return render(request, "tuning/job.html", context)


@require_POST
@tenant_page(Permission.EDIT_ADAPTERS)
def change(request: HttpRequest, caller: Caller, job_id: str, action: str) -> HttpResponse:
    """Make one of CHANGES."""
    found = _of(caller.tenant, job_id)
    if action not in CHANGES:
        raise Http404
    make, message = CHANGES[action]
    try:
        make(found)
    except TuningNotPossible as refused:
        messages.error(request, refused.message)
    else:
        AuditEntry.objects.note(actor_of(request), caller.tenant, "changed", found.pk, AUDITED)
        messages.success(request, message)
    return redirect("fine-tuning-one", caller.tenant.slug, found.pk)


@require_POST
@tenant_page(Permission.EDIT_ADAPTERS)
def compare(request: HttpRequest, caller: Caller, job_id: str) -> HttpResponse:
    """Have the job's model and others answer held-out rows, at the expense of the member."""
    caller.require(Permission.USE_FILES)
    found = _of(caller.tenant, job_id)
    assert caller.user is not None, "tenant_page lets only people in"
    key = ApiKey.objects.playground_of(caller.user, caller.tenant)
    try:
        comparison.compare(found, key)
    except InferenceError as refused:
        messages.error(request, refused.message)
    else:
        note(request, caller, "compared fine-tuning job", found.pk)
        messages.success(request, "The models are asked. The comparison appears here.")
    return redirect("fine-tuning-one", caller.tenant.slug, found.pk)


def _comparison(runs: list[EvalRun]) -> str:
    """The query of the page that compares these runs; empty until all are completed."""
    if len(runs) < 2 or any(run.status != EvalStatus.COMPLETED for run in runs):
        return ""
    names = ("a", "c", "b") if len(runs) > 2 else ("a", "b")
    return urlencode({name: run.pk for name, run in zip(names, runs, strict=True)})


def _of(tenant: Tenant, job_id: str) -> FineTuningJob:
    found = tenant.tuning_jobs.select_related("tenant", "key", "base_model", "version__adapter")
    return get_object_or_404(found, pk=job_id.replace("\0", ""))


def _line(job: FineTuningJob) -> UsageEvent | None:
    """Its line in the ledger; None until it is billed."""
    if job.status != TuningStatus.SUCCEEDED:
        return None
    began = (job.created_at - ROUNDED, job.created_at + ROUNDED)
    return job.tenant.usage.filter(started_at__range=began, id=job.pk).first()


def _possible(job: FineTuningJob) -> list[str]:
    """The names of the CHANGES that its state allows."""
    if job.status in ENDED or job.version_id is not None:
        return []
    paused = job.status == TuningStatus.PAUSED
    may_pause = job.status in before(TuningStatus.PAUSED)
    return ["resume"] * paused + ["pause"] * may_pause + ["cancel"]
