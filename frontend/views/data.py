"""Everything that a tenant has, as an archive."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from frontend.pages import refusals_told, tenant_page
from tenants.files.content import answer_with
from tenants.models import AuditEntry
from tenants.models.audit import actor_of
from tenants.offboarding import exports, jobs
from tenants.permissions import Caller, Permission


@require_http_methods(["GET", "POST"])
@tenant_page(Permission.EXPORT_TENANT, while_suspended=True)
def data(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The page; POST asks for an archive."""
    if request.method == "POST":
        with refusals_told(request):
            jobs.export_later(caller, actor_of(request))
            messages.success(request, "The archive is being written. Reload this page to see it.")
        return redirect("data", caller.tenant.slug)
    found = list(exports.visible_to(caller))
    context: dict[str, Any] = {
        "exports": found,
        "under_way": caller.tenant.exports.filter(finished_at=None).exists(),
        "with_content": caller.may(Permission.READ_CONTENT),
        "days": exports.LIFETIME.days,
    }
    return render(request, "data.html", context)


@require_GET
@tenant_page(Permission.EXPORT_TENANT)
def download(request: HttpRequest, caller: Caller, export_id: str) -> HttpResponseBase:
    """An archive."""
    finished = exports.visible_to(caller).filter(finished_at__isnull=False)
    export = get_object_or_404(finished, pk=export_id.replace("\0", ""))
    if not exports.is_kept(export):  # such as after a restore: backups have no archives
        raise Http404
    AuditEntry.objects.note(
        actor_of(request), caller.tenant, "downloaded", export.pk, kind="export"
    )
    return answer_with(export, attached=True)
