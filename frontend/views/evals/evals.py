"""A tenant's evals: the list, and one with its criteria and runs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from django.db.models import Func, JSONField, OuterRef, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from frontend.lists import older_than, page_of, words_of
from frontend.pages import tenant_page
from frontend.views.adapters.fingerprints import hashed, not_modified
from frontend.views.evals.wording import in_words
from tenants.evals.criteria import Offered
from tenants.models import Eval, EvalRun, Tenant
from tenants.models.evals import EvalStatus
from tenants.permissions import Caller, Permission

MAX_CHOICES = 100
"""Completed runs that can be chosen to be compared, newest first."""
NAMES = Func(
    "criteria",
    template="jsonb_path_query_array(%(expressions)s, '$[*].name')",
    output_field=JSONField(),
)
"""The names of an eval's criteria alone: with their prompts and schemas they can have megabytes."""


@never_cache
@require_GET
@tenant_page(Permission.USE_FILES)
def evals(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The list, newest first."""
    found, words, after = caller.tenant.evals.all(), words_of(request), words_of(request, "after")
    if words:
        found = found.filter(name__icontains=words)
    if before := found.filter(pk=after).first():
        found = older_than(found, before, "created_at")
    rows, last = page_of(found.defer("metadata", "config", "criteria"))
    listed = caller.tenant.evals.filter(pk__in=[row.pk for row in rows])
    newest = EvalRun.objects.filter(eval=OuterRef("pk")).values("pk")[:1]
    runs = EvalRun.objects.listed().filter(pk__in=listed.values(newest=Subquery(newest)))
    last_runs = {run.eval_id: run for run in runs}
    criteria = dict(listed.values_list("pk", NAMES))
    context = {
        "rows": [(row, criteria.get(row.pk), last_runs.get(row.pk)) for row in rows],
        "last": last,
        "words": words,
        "paged": bool(after),
    }
    return render(request, "evals/evals.html", context)


@never_cache
@require_GET
@tenant_page(Permission.USE_FILES)
def eval(request: HttpRequest, caller: Caller, eval_id: str) -> HttpResponse:
    """One eval; its runs are listed newest first."""
    found = eval_of(caller.tenant, eval_id)
    runs, after = found.runs.listed(), words_of(request, "after")
    if before := runs.filter(pk=after).first():
        runs = older_than(runs, before, "created_at")
    rows, last = page_of(runs)
    fingerprint = fingerprint_of(rows)
    if not_modified(request, fingerprint):
        return HttpResponse(status=304)
    completed = found.runs.listed().filter(status=EvalStatus.COMPLETED)[:MAX_CHOICES]
    context = {
        "eval": found,
        "criteria": [in_words(one) for one in msgspec.convert(found.criteria, list[Offered])],
        "rows": rows,
        "last": last,
        "paged": bool(after),
        "fingerprint": fingerprint,
        "completed": list(completed),
    }
    return render(request, "evals/eval.html", context)


def eval_of(tenant: Tenant, eval_id: str) -> Eval:
    """The tenant's eval with this id. Raises Http404."""
    return get_object_or_404(tenant.evals, pk=eval_id.replace("\0", ""))


def fingerprint_of(runs: Iterable[EvalRun], *more: object) -> str:
    """A value that changes whenever what is shown of the runs does, apart from times."""
    states = [(run.pk, run.status, run.stage, run.total) for run in runs]
    return hashed(states, more)
