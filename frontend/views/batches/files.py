"""A tenant's files: the list, uploads, downloads and deletion.

`tenants.files.intake` bounds the body of an upload before it gets here.
"""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.core.files.uploadedfile import TemporaryUploadedFile
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from frontend.lists import older_than, page_of, words_of
from frontend.pages import tenant_page
from frontend.views.batches.batches import note
from inference.errors import InferenceError
from tenants.adapters.quota import Storage
from tenants.api.endpoints.openai.files import PURPOSES, usual_seconds
from tenants.files import intake, keeping
from tenants.files.content import answer_with
from tenants.models import Purpose, StoredFile, Tenant
from tenants.permissions import Caller, Permission

TITLES = {
    Purpose.BATCH: "Batch",
    Purpose.FINE_TUNE: "Fine-tuning",
    Purpose.EVALS: "Evals",
    Purpose.USER_DATA: "User data",
    Purpose.BATCH_OUTPUT: "Batch output",
}


class FileForm(forms.Form):
    """A file to upload."""

    upload = forms.FileField(label="File", max_length=255)
    purpose = forms.ChoiceField(
        choices=[(name, TITLES[Purpose(name)]) for name in PURPOSES],
        help_text="Files for batches are kept for 30 days, others until you delete them.",
    )

    def save(self, tenant: Tenant) -> StoredFile | None:
        """Keep the file of a valid form; None, with an error, if there is no room for it."""
        try:
            return keep(tenant, self.cleaned_data["upload"], self.cleaned_data["purpose"])
        except InferenceError as refused:
            self.add_error("upload", refused.message)
            return None


def keep(tenant: Tenant, upload: TemporaryUploadedFile, purpose: str) -> StoredFile:
    """Keep an upload as a new file, as long as the API does.

    Raises:
        StorageFull: the tenant has no room for it.
    """
    file = StoredFile(
        tenant=tenant,
        purpose=purpose,
        filename=upload.name or "file",
        size_bytes=upload.size or 0,
        expires_at=keeping.expiry(usual_seconds(purpose)),
    )
    keeping.keep(file, upload)
    return file


@never_cache
@csrf_exempt  # only `_upload` checks: its token is in a body that may have been refused
@require_http_methods(["GET", "POST"])
@tenant_page(Permission.USE_FILES)
def files(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The list, newest first; POST uploads a file."""
    if request.method != "POST":
        return _list(request, caller, FileForm())
    if (refused := intake.refusal_of(request)) is not None:
        messages.error(request, refused.message)
        return _list(request, caller, FileForm())
    response: HttpResponse = csrf_protect(_upload)(request, caller)
    return response


def _upload(request: HttpRequest, caller: Caller) -> HttpResponse:
    form = FileForm(request.POST, request.FILES)
    if not form.is_valid() or (file := form.save(caller.tenant)) is None:
        return _list(request, caller, form)
    note(request, caller, "uploaded file", file.pk)
    messages.success(request, f"“{file.filename}” is uploaded.")
    return redirect("batches-files", caller.tenant.slug)


def _list(request: HttpRequest, caller: Caller, form: FileForm) -> HttpResponse:
    found, after = caller.tenant.files.current(), words_of(request, "after")
    if words := words_of(request):
        found = found.filter(filename__icontains=words)
    if before := found.filter(pk=after).first():
        found = older_than(found, before, "created_at")
    rows, last = page_of(found)
    context = {
        "rows": [(row, TITLES[Purpose(row.purpose)]) for row in rows],
        "largest": max((row.size_bytes for row in rows), default=0),
        "last": last,
        "words": words,
        "form": form,
        "storage": Storage.of(caller.tenant),
    }
    return render(request, "batches/files.html", context, status=422 if form.errors else 200)


@require_GET
@tenant_page(Permission.USE_FILES)
def download(request: HttpRequest, caller: Caller, file_id: str) -> HttpResponseBase:
    """The file's bytes."""
    file = get_object_or_404(caller.tenant.files.current(), pk=file_id.replace("\0", ""))
    note(request, caller, "downloaded file", file.pk)
    return answer_with(file, attached=True)


@require_POST
@tenant_page(Permission.USE_FILES)
def delete(request: HttpRequest, caller: Caller, file_id: str) -> HttpResponse:
    """Delete the file for good."""
    file = get_object_or_404(caller.tenant.files.current(), pk=file_id.replace("\0", ""))
    try:
        keeping.delete(caller.tenant, file.pk)
    except InferenceError as refused:
        messages.error(request, refused.message)
    else:
        note(request, caller, "deleted file", file.pk)
        messages.success(request, f"“{file.filename}” is deleted.")
    return redirect("batches-files", caller.tenant.slug)
