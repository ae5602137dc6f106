"""Everything that a tenant has, as an archive; and the deletion of the tenant."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from frontend.pages import refusals_as_messages, tenant_page
from tenants.files.content import answer_with
from tenants.models import AuditEntry, TenantDeletion
from tenants.models.audit import actor_of
from tenants.offboarding import deletion as deletions
from tenants.offboarding import exports, jobs
from tenants.permissions import Caller, Permission


class DeletionForm(forms.Form):
    """The confirmation of a deletion: the tenant's slug."""

    slug = forms.CharField()

    def __init__(self, caller: Caller, *args: Any) -> None:
        super().__init__(*args)
        self._slug = caller.tenant.slug
        self.fields["slug"].label = f"Type {self._slug} to confirm"

    def clean_slug(self) -> str:
        if (typed := str(self.cleaned_data["slug"])) != self._slug:
            raise ValidationError(f"This is not {self._slug}.")
        return typed


@require_http_methods(["GET", "POST"])
@tenant_page(Permission.EXPORT_TENANT, while_suspended=True)
def data(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The page; POST asks for an archive."""
    if request.method == "POST":
        with refusals_as_messages(request):
            jobs.export_later(caller, actor_of(request))
            messages.success(request, "The archive is being written. Reload this page to see it.")
        return redirect("data", caller.tenant.slug)
    return _page(request, caller, DeletionForm(caller))


def _page(request: HttpRequest, caller: Caller, form: DeletionForm) -> HttpResponse:
    deletion = TenantDeletion.objects.of(caller.tenant)
    context: dict[str, Any] = {
        "exports": list(exports.visible_to(caller)),
        "under_way": caller.tenant.exports.filter(finished_at=None).exists(),
        "with_content": caller.may(Permission.READ_CONTENT),
        "days": exports.LIFETIME.days,
        "deletion": deletion,
        "deleted": [(name.replace("_", " "), n) for name, n in deletion.counts.items()]
        if deletion
        else [],
        "may_take_back": deletion is not None and deletions.may_take_back(caller, deletion),
        "grace_days": settings.DELETION_GRACE_DAYS,
        "form": form,
    }
    return render(request, "data.html", context, status=422 if form.errors else 200)


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


@require_POST
@tenant_page(Permission.DELETE_TENANT, while_suspended=True)
def delete(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Have the tenant deleted after the grace period."""
    form = DeletionForm(caller, request.POST)
    if not form.is_valid():
        return _page(request, caller, form)
    with refusals_as_messages(request):
        asked = deletions.ask(caller)
        messages.success(
            request, f"{caller.tenant.name} will be deleted on {asked.due_at:%Y-%m-%d}."
        )
    return redirect("data", caller.tenant.slug)


@require_POST
@tenant_page(Permission.DELETE_TENANT, while_suspended=True)
def keep(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Take the deletion back."""
    with refusals_as_messages(request):
        deletions.take_back(caller)
        messages.success(request, f"{caller.tenant.name} will not be deleted.")
    return redirect("data", caller.tenant.slug)


@require_GET
@tenant_page(Permission.DELETE_TENANT)
def receipt(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Download the signed receipt of the deletion."""
    ended = TenantDeletion.objects.filter(tenant=caller.tenant, ended_at__isnull=False)
    name = f'attachment; filename="deleted-{caller.tenant.slug}.json"'
    return JsonResponse(
        get_object_or_404(ended).signed,
        json_dumps_params={"indent": 2},
        headers={"Content-Disposition": name},
    )
