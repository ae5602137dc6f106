"""Starting a batch in the console: of a file that is there, or of one sent with the form.

`tenants.files.intake` bounds the body of the form before it gets here.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_http_methods

from frontend.pages import tenant_page
from frontend.views.batches.batches import note
from frontend.views.batches.files import keep
from inference.errors import InferenceError
from inference.operations.registry import OPERATIONS
from tenants.adapters import quota
from tenants.api.endpoints.openai.batches import operation_at
from tenants.api.endpoints.openai.files import MOST_S
from tenants.batches import starting
from tenants.batches.reading import MAX_BYTES
from tenants.files import intake
from tenants.models import ApiKey, Batch, Purpose, Scope, StoredFile, Tenant
from tenants.permissions import Caller, Permission
from tenants.sizes import size

MAX_CHOICES = 100
"""Files and keys that the form offers, newest first."""


class NamedField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """Choice of a key by its name, or of a file by its name, size and the end of its id."""

    def to_python(self, value: Any) -> Any:
        return super().to_python(value.replace("\0", "") if isinstance(value, str) else value)

    def label_from_instance(self, obj: StoredFile | ApiKey) -> str:
        if isinstance(obj, ApiKey):
            return obj.name
        return f"{obj.filename} ({size(obj.size_bytes)}, …{obj.pk[-6:]})"


class BatchForm(forms.Form):
    """A new batch of a file that is there, or of one to upload."""

    file = NamedField(
        StoredFile.objects.none(), required=False, label="Uploaded file", empty_label="Choose"
    )
    upload = forms.FileField(
        required=False,
        max_length=255,
        label="Or upload a file",
        help_text="A JSONL file: one request on each line, up to 50,000 lines and 200 MB.",
        widget=forms.FileInput({"accept": ".jsonl"}),
    )
    endpoint = forms.ChoiceField(
        choices=[(one.path, one.path) for one in OPERATIONS if one.in_batches],
        help_text="The same as the url of each line.",
    )
    key = NamedField(
        ApiKey.objects.none(),
        label="API key",
        empty_label=None,
        help_text="Its models and limits apply, and the batch is billed to it.",
    )

    def __init__(self, caller: Caller, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        files = caller.tenant.files.current().filter(purpose=Purpose.BATCH)
        for name, found in (("file", files), ("key", keys_for_batches(caller))):
            field = self.fields[name]
            assert isinstance(field, NamedField)
            field.queryset = found if self.is_bound else found[:MAX_CHOICES]

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = self.cleaned_data
        file, upload = given.get("file"), given.get("upload")
        if not self.errors and bool(file) == bool(upload):
            self.add_error("file", "Choose a file here, or one to upload, not both.")
        if upload and upload.size > MAX_BYTES:
            message = f"The file has {size(upload.size)}. A batch can have {size(MAX_BYTES)}."
            self.add_error("upload", message)
        return given

    def start(self, tenant: Tenant) -> Batch | None:
        """Start the batch of a valid form; None, with an error, if it is refused."""
        given = self.cleaned_data
        try:
            file = given["file"] or keep(tenant, given["upload"], Purpose.BATCH)
            return start(tenant, given["key"], file, given["endpoint"])
        except InferenceError as refused:
            self.add_error(None, refused.message)
            return None


def keys_for_batches(caller: Caller) -> Any:
    """The usable keys that may run batches, of those that the caller may change, newest first."""
    lasting = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    found = caller.tenant.keys.with_text().filter(lasting, revoked_at=None)
    found = found.filter(scopes__contains=[Scope.INFERENCE])
    if not caller.may(Permission.EDIT_KEYS):
        found = found.filter(created_by=caller.user)
    return found.order_by("-created_at", "-pk")


def start(tenant: Tenant, key: ApiKey, file: StoredFile, endpoint: str) -> Batch:
    """Start a batch, as the API does.

    Raises:
        InferenceError: see `starting.start`.
    """
    operation = operation_at(endpoint)
    batch = starting.new_batch(key, operation, input_file=file, output_seconds=MOST_S)
    with transaction.atomic():
        starting.start(batch, quota.locked(tenant.pk))
    return batch


@csrf_exempt  # only `_create` checks: its token is in a body that may have been refused
@never_cache
@require_http_methods(["GET", "POST"])
@tenant_page(Permission.USE_FILES)
def new_batch(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The form of a new batch; POST starts it."""
    if request.method != "POST":
        return _form(request, caller, BatchForm(caller, initial=request.GET.dict()))
    if (refused := intake.refusal_of(request)) is not None:
        messages.error(request, refused.message)
        return _form(request, caller, BatchForm(caller))
    response: HttpResponse = csrf_protect(_create)(request, caller)
    return response


def _create(request: HttpRequest, caller: Caller) -> HttpResponse:
    form = BatchForm(caller, request.POST, request.FILES)
    if not form.is_valid() or (batch := form.start(caller.tenant)) is None:
        return _form(request, caller, form)
    note(request, caller, "created batch", batch.pk)
    messages.success(request, "Batch created. Its file is being checked.")
    return redirect("batches-one", caller.tenant.slug, batch.pk)


def _form(request: HttpRequest, caller: Caller, form: BatchForm) -> HttpResponse:
    context = {"form": form, "has_key": keys_for_batches(caller).exists()}
    return render(request, "batches/new.html", context, status=422 if form.errors else 200)
