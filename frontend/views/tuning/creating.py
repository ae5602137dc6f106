"""Starting a fine-tuning job in the console: of a file that is there, or of one sent with the form.

`tenants.files.intake` bounds the body of the form before it gets here.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_http_methods

from frontend.pages import tenant_page
from frontend.views.batches.creating import MAX_CHOICES, NamedField
from frontend.views.batches.files import keep
from inference.errors import InferenceError
from tenants.files import intake
from tenants.models import (
    ApiKey,
    AuditEntry,
    BaseModel,
    FineTuningJob,
    Purpose,
    StoredFile,
    Tenant,
    User,
)
from tenants.models.audit import Actor, actor_of
from tenants.models.tuning import AUDITED, MAX_SUFFIX
from tenants.permissions import Caller, Permission
from tenants.sizes import size
from tenants.tuning import starting
from tenants.tuning.child.rows import MAX_BYTES
from tenants.tuning.hyperparameters import AUTO, BOUNDS
from tenants.tuning_states import DPO, SUPERVISED


class TuningForm(forms.Form):
    """A new job. What is left empty of the hyperparameters is chosen by the number of rows."""

    model = forms.ChoiceField(label="Base model")
    method = forms.ChoiceField(
        choices=[(SUPERVISED, "Supervised: dialogues"), (DPO, "DPO: preferred and other outputs")],
        help_text="What the lines of the files are.",
    )
    training_file = NamedField(
        StoredFile.objects.none(), required=False, label="Training file", empty_label="Choose"
    )
    upload = forms.FileField(
        required=False,
        max_length=255,
        label="Or upload a file",
        help_text="A JSONL file: one dialogue on each line, in OpenAI's chat format.",
        widget=forms.FileInput({"accept": ".jsonl"}),
    )
    validation_file = NamedField(
        StoredFile.objects.none(),
        required=False,
        label="Validation file",
        empty_label="None",
        help_text="The loss on it is computed at the end of each epoch.",
    )
    suffix = forms.RegexField(
        rf"\A{starting.SUFFIX.pattern}\Z",
        required=False,
        label="Name",
        max_length=MAX_SUFFIX,
        help_text="The beginning of the adapter's name.",
        error_messages={"invalid": f"The name {starting.SUFFIX_RULE}"},
    )
    n_epochs = forms.IntegerField(required=False, label="Epochs")
    batch_size = forms.IntegerField(required=False, label="Batch size")
    learning_rate_multiplier = forms.FloatField(required=False, label="Learning rate multiplier")
    beta = forms.FloatField(required=False, label="Beta", help_text="Of DPO alone.")
    seed = forms.IntegerField(
        required=False, min_value=0, max_value=starting.MAX_SEED, help_text="Empty: a random one."
    )

    def __init__(self, tenant: Tenant, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = BaseModel.objects.that_chat().order_by("name").values_list("name", flat=True)
        chosen: Any = self.fields["model"]
        chosen.choices = [(name, name) for name in names]
        files = tenant.files.current().filter(purpose=Purpose.FINE_TUNE)
        for name in ("training_file", "validation_file"):
            field = self.fields[name]
            assert isinstance(field, NamedField)
            field.queryset = files if self.is_bound else files[:MAX_CHOICES]
        for name, (least, most) in BOUNDS[DPO].items():
            number: Any = self.fields[name]
            hint = f"{least:g} to {most:g}; chosen for you if empty."
            number.help_text = f"{hint} {number.help_text}".strip()

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = self.cleaned_data
        file, upload = given.get("training_file"), given.get("upload")
        if not self.errors and bool(file) == bool(upload):
            self.add_error("training_file", "Choose a file here, or one to upload, not both.")
        if upload and upload.size > MAX_BYTES:
            message = f"The file has {size(upload.size)}; at most {size(MAX_BYTES)} are allowed."
            self.add_error("upload", message)
        for name, (least, most) in BOUNDS[DPO].items():
            value = given.get(name)
            if value is not None and not least <= value <= most:
                self.add_error(name, f"It is {value:g}: it must be from {least:g} to {most:g}.")
        if given.get("method") == SUPERVISED and given.get("beta") is not None:
            self.add_error("beta", "It is of the method DPO: leave it empty.")
        return given

    def start(self, tenant: Tenant, by: User, actor: Actor) -> FineTuningJob | None:
        """Start the job of a valid form; None, with an error, if it is refused."""
        given = self.cleaned_data
        seed, method = given["seed"], given["method"]
        numbers = {name: AUTO if given[name] is None else given[name] for name in BOUNDS[method]}
        job = FineTuningJob(
            tenant=tenant,
            key=ApiKey.objects.playground_of(by, tenant),
            base_model=BaseModel.objects.get(name=given["model"]),
            method=method,
            hyperparameters=numbers,
            suffix=given["suffix"].lower(),
            seed=starting.random_seed() if seed is None else seed,
            actor=msgspec.to_builtins(actor),
        )
        held = given["validation_file"]
        try:
            file = given["training_file"] or keep(tenant, given["upload"], Purpose.FINE_TUNE)
            with transaction.atomic():
                starting.start(job, file.pk, held.pk if held else None)
                AuditEntry.objects.note(actor, tenant, "created", job.pk, AUDITED)
        except InferenceError as refused:
            self.add_error(None, refused.message)
            return None
        return job


@csrf_exempt  # only `_create` checks: its token is in a body that may have been refused
@never_cache
@require_http_methods(["GET", "POST"])
@tenant_page(Permission.EDIT_ADAPTERS)
def new_job(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The form of a new job; POST starts it."""
    if request.method != "POST":
        initial = {"training_file": request.GET.get("file", "")}
        return _form(request, TuningForm(caller.tenant, initial=initial))
    if (refused := intake.refusal_of(request)) is not None:
        messages.error(request, refused.message)
        return _form(request, TuningForm(caller.tenant))
    response: HttpResponse = csrf_protect(_create)(request, caller)
    return response


def _create(request: HttpRequest, caller: Caller) -> HttpResponse:
    form, actor = TuningForm(caller.tenant, request.POST, request.FILES), actor_of(request)
    by = caller.user
    assert actor is not None and by is not None, "tenant_page lets nobody else in"
    if not form.is_valid() or (job := form.start(caller.tenant, by, actor)) is None:
        return _form(request, form)
    messages.success(request, "Job created. Its files are being checked.")
    return redirect("fine-tuning-one", caller.tenant.slug, job.pk)


def _form(request: HttpRequest, form: TuningForm) -> HttpResponse:
    return render(request, "tuning/new.html", {"form": form}, status=422 if form.errors else 200)
