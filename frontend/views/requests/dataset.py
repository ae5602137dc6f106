"""Saves the stored chats among the listed requests as a file."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from frontend.pages import tenant_page
from frontend.views.requests.requests import RequestFilter, found_by, keys_of
from inference.errors import InferenceError
from tenants.content import datasets
from tenants.content.datasets import Dataset
from tenants.models.audit import actor_of
from tenants.models.usage.listed import Outcome
from tenants.permissions import Caller, Permission


@require_POST
@tenant_page(Permission.READ_CONTENT)
def save(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Write the newest requests of the filter that were answered in full."""
    caller.require(Permission.USE_FILES)
    slug, query = caller.tenant.slug, request.POST.get("query", "").removeprefix("?")
    form = RequestFilter(QueryDict(query), keys_of(caller), by_member=True)
    if not form.is_valid():
        messages.error(request, "Dataset not saved: the filter is not valid.")
        return redirect("requests", slug)
    entries = found_by(form, caller, datasets.MAX_REQUESTS)
    ids = [one.event.id for one in entries if one.outcome == Outcome.ANSWERED]
    actor = actor_of(request)
    assert actor is not None
    name = f"requests-{timezone.now():%Y-%m-%d-%H%M%S}.jsonl"
    try:
        found = datasets.save(caller.tenant, ids, name, actor)
    except InferenceError as refused:
        messages.error(request, refused.message)
        return redirect("requests", slug)
    return _report(request, found, slug, query)


def _report(request: HttpRequest, found: Dataset, slug: str, query: str) -> HttpResponse:
    """The page of files, or the list if nothing could be written, with what was left out."""
    reasons = [f"{count:,} {reason}" for reason, count in found.left_out.items()]
    left_out = f" Left out: {'; '.join(reasons)}." if reasons else ""
    if found.file is None:
        messages.error(request, f"Dataset not saved: no answered chat is stored here.{left_out}")
        back = reverse("requests", args=[slug])
        return redirect(f"{back}?{query}" if query else back)
    count = f"{found.written:,} request{'' if found.written == 1 else 's'}"
    messages.success(request, f"“{found.file.filename}” has {count}.{left_out}")
    return redirect("batches-files", slug)
