"""One run of an eval: its sums and rows, and its cancellation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from frontend.lists import Sort, id_in_url, page_of
from frontend.pages import tenant_page
from frontend.views.adapters.fingerprints import not_modified
from frontend.views.batches.batches import note
from frontend.views.evals.evals import fingerprint_of
from frontend.views.evals.wording import result_of
from tenants.evals import runs
from tenants.models import EvalRun, Tenant
from tenants.permissions import Caller, Permission

PAGE = 25
"""Rows per page; each may be read from a megabyte."""
MAX_GRADES = 300
"""Grades per page; with many criteria a page has fewer rows."""
FAILURES_FIRST = Sort("status", descending=False, unique="number")
"""Errored, failed, passed: their names have this order."""


@never_cache
@require_GET
@tenant_page(Permission.USE_FILES)
def run(request: HttpRequest, caller: Caller, eval_id: str, run_id: str) -> HttpResponse:
    """One run; its rows are listed once they are graded."""
    found = _of(caller.tenant, eval_id, run_id)
    done = [(batch.pk, batch.status, batch.done) for batch in found.batches]
    fingerprint = fingerprint_of([found], done)
    if not_modified(request, fingerprint):
        return HttpResponse(status=304)
    after = id_in_url(request, "after")
    items = FAILURES_FIRST.behind(found.items.all(), "" if after is None else str(after))
    page, last = page_of(items, min(PAGE, MAX_GRADES // len(found.eval.criteria)))
    context = {
        "eval": found.eval,
        "run": found,
        "fingerprint": fingerprint,
        "batches": [*_batches(found)],
        "criteria": [*_criteria(found)],
        "usage": [{"model": model, **sums} for model, sums in found.usage.items()],
        "rows": [result_of(item) for item in page],
        "last": last,
    }
    return render(request, "evals/run.html", context)


@require_POST
@tenant_page(Permission.USE_FILES)
def cancel(request: HttpRequest, caller: Caller, eval_id: str, run_id: str) -> HttpResponse:
    """Cancel the run and its batches; no row is graded."""
    found = _of(caller.tenant, eval_id, run_id)
    if runs.cancel(found):
        note(request, caller, "cancelled eval run", found.pk)
        messages.success(request, "Run cancelled.")
    else:
        messages.error(request, "The run had already ended.")
    return redirect("evals-run", caller.tenant.slug, found.eval_id, found.pk)


def _of(tenant: Tenant, eval_id: str, run_id: str) -> EvalRun:
    found = EvalRun.objects.filter(eval__tenant=tenant, eval=eval_id.replace("\0", ""))
    found = found.select_related("eval", "key", "samples", "verdicts")
    return get_object_or_404(found, pk=run_id.replace("\0", ""))


def _batches(run: EvalRun) -> Iterator[Mapping[str, Any]]:
    """What models were asked."""
    for title, batch in (("Answers", run.samples), ("Verdicts of graders", run.verdicts)):
        if batch is not None:
            yield {"title": title, "batch": batch}


def _criteria(run: EvalRun) -> Iterator[Mapping[str, Any]]:
    """The sums of each criterion, once the rows are graded."""
    for criterion, sums in zip(run.eval.criteria, run.by_criterion, strict=False):
        errored = run.total - sums["passed"] - sums["failed"]
        share = sums["passed"] / run.total if run.total else None
        yield {
            "name": criterion["name"],
            "type": criterion["type"],
            **sums,
            "errored": errored,
            "share": share,
        }
