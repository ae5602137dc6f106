"""Adapters: the list, and the page of one adapter with its aliases and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import messages
from django.db.models import (
    Case,
    Exists,
    IntegerField,
    OuterRef,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.fields.json import KT
from django.db.models.functions import Greatest
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_http_methods, require_POST

from frontend import bulk
from frontend.lists import Sort, older_page_of, page_of
from frontend.pages import refusals_as_messages, tenant_page
from frontend.views.adapters.fingerprints import fingerprint, not_modified
from frontend.views.adapters.split_figures import gates_of, splits_of, with_splits
from frontend.views.adapters.traffic import (
    AdapterTraffic,
    of_adapters,
    of_versions,
    requests_of_day,
)
from tenants.adapters.quota import Storage
from tenants.adapters.uploads import handover, parts
from tenants.adapters.uploads.keeping import Destination
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.adapters.uploads.reservations import reservation
from tenants.fleet.gateways import gateways
from tenants.models import (
    LIVE,
    Adapter,
    AdapterVersion,
    Alias,
    BaseModel,
    State,
    Tenant,
    Trial,
)
from tenants.models.audit import actor_of
from tenants.naming import lora_name
from tenants.permissions import Caller, Permission

ARCHIVE = bulk.Action(
    "Archive",
    "Archive the selected versions?",
    "Engines unload them, and requests for them are refused. Upload the same files to restore one.",
)
DELETE = bulk.Action(
    "Delete",
    "Delete the selected versions?",
    "Their files are deleted as well. Their cost stays on the bill. This cannot be undone.",
)
READ, EDIT = Permission.READ_ADAPTERS, Permission.EDIT_ADAPTERS
VERSIONS = 25
LISTED = ("name", "pinned", "tenant", "base_model__name")
"""Columns of the adapter itself that the list shows."""
SORTS = {"name": "Adapter", "state": "State", "updated": "Updated", "requests": "Requests"}
PLACES = {
    State.READY: 1,
    State.UPLOADING: 2,
    State.VALIDATING: 2,
    State.PROBING: 2,
    State.REJECTED: 4,
    State.ARCHIVED: 5,
}
"""Order by state: an adapter with a live version comes before all others; these are the places of
the others by the state of their newest version. Without one it is 3."""
MAX_CHOICES = 100
"""Maximum number of ready versions offered as choices, newest first; older ones are promoted on
their page."""


class FilterForm(forms.Form):
    """The filter in the list's URL; invalid values are ignored."""

    q = forms.CharField(required=False)
    state = forms.ChoiceField(required=False, choices=[("", "Any state"), *State.choices])
    sort = forms.CharField(required=False)
    after = forms.CharField(required=False)


class VersionField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """Choice of a version by its number."""

    def label_from_instance(self, obj: AdapterVersion) -> str:
        return f"{obj.number} · {obj.digest[:12]}"


class PromoteForm(forms.Form):
    """An alias, and the ready version to which it should point."""

    version = VersionField(
        AdapterVersion.objects.none(),
        to_field_name="number",
        empty_label=None,
        error_messages={"invalid_choice": "This is not a ready version of this adapter."},
    )
    alias = forms.CharField(
        initial=LIVE,
        validators=Alias._meta.get_field("name").validators,
        help_text="Requests that name only the adapter use “live”. A new name creates an alias.",
    )

    def __init__(self, adapter: Adapter, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ready = adapter.versions.filter(state=State.READY)
        field = self.fields["version"]
        assert isinstance(field, VersionField)
        field.queryset = ready if self.is_bound else ready[:MAX_CHOICES]


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """An adapter in the list, with its newest version, and its live version's number."""

    adapter: Adapter
    updated: datetime
    traffic: AdapterTraffic
    newest: AdapterVersion | None = None
    rejected: str = ""
    """Why the newest version was rejected, if it was."""
    live: int | None = None
    engines: Sequence[str] = ()
    """The engines on which its live version is loaded."""


@tenant_page(READ)
def adapters(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The tenant's adapters; by default those that serve come first."""
    return _list(request, caller, {})


def _list(
    request: HttpRequest, caller: Caller, upload: Mapping[str, Any], status: int = 200
) -> HttpResponse:
    """Render the list of adapters; `upload` is the context of its upload dialog."""
    # Before the rest is read, which must not be older.
    page_fingerprint = fingerprint(caller.tenant)
    if not_modified(request, page_fingerprint):
        return HttpResponseNotModified()
    form = FilterForm(request.GET)
    form.is_valid()
    wanted = form.cleaned_data
    sort = Sort.of(wanted.get("sort", ""), SORTS, unique="name", usual="state")
    matching = _matching(caller, sort, wanted.get("q", ""), wanted.get("state", ""))
    found, last = page_of(sort.behind(matching, wanted.get("after", "")))
    uploads = caller.tenant.uploads.unfinished().lasting()
    unfinished = list(uploads.named().select_related("created_by"))
    context = {
        "rows": _rows(caller.tenant, found),
        "last": last,
        "words": wanted.get("q", ""),
        "state": wanted.get("state", ""),
        "sort": sort,
        "columns": sort.columns(SORTS, request.GET, numbers={"requests"}, times={"updated"}),
        "states": form.fields["state"].choices,  # type: ignore[attr-defined]
        "may_try": caller.may(Permission.USE_PLAYGROUND),
        "filtered": any(wanted.get(name) for name in ("q", "state")),
        "paged": bool(wanted.get("after")),
        "unfinished": unfinished,
        "largest_upload": max((one.length_bytes for one in unfinished), default=0),
        "storage": Storage.of(caller.tenant),
        "base_models": BaseModel.objects.values_list("name", flat=True),
        "fingerprint": page_fingerprint,
        **uploading(request, caller),
        **upload,
    }
    return render(request, "adapters/adapters.html", context, status=status)


def uploading(request: HttpRequest, caller: Caller) -> dict[str, Any]:
    """Context of the upload dialog."""
    return {
        "may_edit": caller.may(EDIT),
        "may_repair": caller.may(Permission.EDIT_TENANT),
        "max_bytes": settings.MAX_ADAPTER_BYTES,
        "adapters_url": request.build_absolute_uri("/api/v1/adapters"),
        "uploads_url": request.build_absolute_uri("/api/v1/uploads"),
    }


@csrf_exempt  # only `_store` checks: its token is in a body that may be too large to read
@require_http_methods(["GET", "POST"])
@tenant_page(EDIT)
def upload(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The upload dialog for browsers without JavaScript: the page, and its submission."""
    if request.method != "POST":
        return _dialog(request, caller, request.GET)
    try:
        response: HttpResponse = csrf_protect(_store)(request, caller)
    except UploadRefused as refusal:  # while its body was read
        return _dialog(request, caller, {}, refusal)
    return response


def _store(request: HttpRequest, caller: Caller) -> HttpResponse:
    files = [file for _, several in request.FILES.lists() for file in several]
    name, base = request.POST.get("name", ""), request.POST.get("base_model", "")
    confirmed = request.POST.get("confirm_base_model") == "true"
    actor = actor_of(request)
    assert actor is not None, "the page is for who has signed in"
    try:
        where = Destination(caller.tenant, name, base, caller.user, confirmed)
        session = handover.outcome(handover.receive(where, files, actor, reservation(request)))
    except UploadRefused as refusal:
        return _dialog(request, caller, request.POST, refusal)
    if session.version is None:
        messages.success(request, f"The upload to {name} is being checked.")
        return redirect("adapters", caller.tenant.slug)
    page = reverse("adapters-version", args=[caller.tenant.slug, name, session.version.number])
    return redirect(f"{page}?known" if session.known else page)


def _dialog(
    request: HttpRequest,
    caller: Caller,
    given: Mapping[str, Any],
    refusal: UploadRefused | None = None,
) -> HttpResponse:
    """The list of adapters with the dialog open and filled with what was submitted."""
    context = {
        "upload_open": True,
        "upload_name": given.get("name", ""),
        "upload_base": given.get("base_model", ""),
        "upload_problem": f"{refusal.message} ({refusal.code})" if refusal else "",
        "upload_unconfirmed": bool(
            refusal and refusal.code == UploadRefusal.BASE_MODEL_UNCONFIRMED
        ),
    }
    return _list(request, caller, context, status=422 if refusal else 200)


@require_POST
@tenant_page(EDIT)
def discard(request: HttpRequest, caller: Caller, id: UUID) -> HttpResponse:
    """Discard an unfinished upload."""
    session = get_object_or_404(caller.tenant.uploads.unfinished().lasting(), pk=id)
    parts.discard(session)
    messages.success(request, f"The upload of {session.file_name} is discarded.")
    return redirect("adapters", caller.tenant.slug)


def _matching(caller: Caller, sort: Sort, words: str, state: str) -> QuerySet[Adapter]:
    """The tenant's adapters with what the list is sorted by, and `updated`: the last upload, or the
    last time that another version became live."""
    newest = AdapterVersion.objects.filter(adapter=OuterRef("pk")).order_by("-number")
    live = Alias.objects.filter(adapter=OuterRef("pk"), name=LIVE)
    found = caller.tenant.adapters.select_related("base_model").only(*LISTED)
    found = found.alias(newest=Subquery(newest.values("state")[:1])).annotate(
        updated=Greatest(
            "created_at",
            Subquery(newest.values("created_at")[:1]),
            Subquery(live.values("changed_at")),
        )
    )
    if words:
        found = found.filter(name__icontains=words)
    if state:
        found = found.filter(newest=state)
    if sort.field == "state":
        places = [When(newest=one, then=Value(place)) for one, place in PLACES.items()]
        first = When(Exists(live), then=Value(0))
        found = found.annotate(
            state=Case(first, *places, default=Value(3), output_field=IntegerField())
        )
    if sort.field == "requests":
        found = found.annotate(requests=requests_of_day(caller.tenant))
    return found


def _rows(tenant: Tenant, adapters: Sequence[Any]) -> list[AdapterRow]:
    """One page of the list, in three queries, however many versions each adapter has."""
    versions = AdapterVersion.objects.filter(adapter__in=adapters)
    newest = versions.order_by("adapter_id", "-number").distinct("adapter_id")
    live = Alias.objects.filter(adapter=OuterRef("adapter"), name=LIVE)
    found = AdapterVersion.objects.filter(pk__in=newest.values("pk")).defer("config", "report")
    found = found.annotate(
        live=Subquery(live.values("version__number")),
        live_digest=Subquery(live.values("version__digest")),
        reason=KT("report__findings__0__message"),
    )
    by_adapter = {version.adapter_id: version for version in found}
    traffic = of_adapters(tenant, [one.name for one in adapters])
    holding = engines_by_adapter()

    def row(adapter: Any) -> AdapterRow:
        version: Any = by_adapter.get(adapter.pk)
        fields = adapter, adapter.updated, traffic[adapter.name]
        if version is None:
            return AdapterRow(*fields)
        name = lora_name(tenant.slug, adapter.name, version.live_digest or "")
        reason = (version.reason or "") if version.state == State.REJECTED else ""
        return AdapterRow(*fields, version, reason, version.live, holding.get(name, []))

    return [row(one) for one in adapters]


@tenant_page(READ)
def adapter(request: HttpRequest, caller: Caller, name: str) -> HttpResponse:
    """One adapter: where its aliases point, and its versions, newest first."""
    found = find(caller, name)
    return _page(request, caller, found, PromoteForm(found))


def find(caller: Caller, name: str) -> Adapter:
    """The tenant's adapter of this name, else 404."""
    named = caller.tenant.adapters.select_related("base_model", "tenant", "created_by")
    return get_object_or_404(with_splits(named), name=name)


def _page(
    request: HttpRequest, caller: Caller, adapter: Adapter, form: PromoteForm
) -> HttpResponse:
    # Before the rest is read, which must not be older.
    page_fingerprint = fingerprint(caller.tenant)
    if not_modified(request, page_fingerprint):
        return HttpResponseNotModified()
    versions = adapter.versions.select_related("created_by").defer("config", "report")
    rows, last = older_page_of(request, versions, VERSIONS, by="number")
    aliases = list(adapter.aliases.select_related("version", "previous"))
    context = {
        "adapter": adapter,
        "aliases": aliases,
        "versions": _annotated(adapter, rows, aliases),
        "last": last,
        "largest": max((row.size_bytes for row in rows), default=0),
        "promotable": any(row.state == State.READY for row in rows) or bool(aliases),
        "form": form,
        **splits_of(adapter),
        "gates": gates_of(adapter),
        "may_pin": caller.may(Permission.OPERATE),
        "may_try": caller.may(Permission.USE_PLAYGROUND),
        "fingerprint": page_fingerprint,
        "bulk": [
            ARCHIVE.of("adapters-archive-some", caller.tenant.slug, adapter.name),
            DELETE.of("adapters-remove-some", caller.tenant.slug, adapter.name),
        ],
        **uploading(request, caller),
    }
    return render(request, "adapters/adapter.html", context, status=422 if form.errors else 200)


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """A version in the table of its adapter."""

    version: AdapterVersion
    aliases: list[str]
    engines: list[str]
    """The engines on which it is loaded."""
    traffic: AdapterTraffic
    trials: list[Trial]


def _annotated(
    adapter: Adapter, versions: Sequence[AdapterVersion], aliases: Iterable[Alias]
) -> list[ListedVersion]:
    holding = engines_by_adapter()
    traffic = of_versions(adapter.tenant, versions)
    tried: dict[int, list[Trial]] = {}
    for trial in Trial.objects.filter(version__in=versions).select_related("revision"):
        tried.setdefault(trial.version_id, []).append(trial)
    rows = []
    for version in versions:
        version.adapter = adapter  # saves one query per version for its LoRA name
        pointing = [alias.name for alias in aliases if alias.version_id == version.pk]
        engines = holding.get(version.lora_name, [])
        of_version = traffic[version.pk], tried.get(version.pk, [])
        rows.append(ListedVersion(version, pointing, engines, *of_version))
    return rows


def engines_by_adapter() -> Mapping[str, list[str]]:
    """The engines on which each LoRA name is loaded, according to the gateways."""
    holding: dict[str, list[str]] = {}
    for engine in gateways().fleet().engines:
        for name in engine["resident_adapters"]:
            holding.setdefault(name, []).append(engine["id"])
    return holding


# --- Actions on an adapter -----------------------------------------------------------------------


@require_POST
@tenant_page(EDIT)
def promote(request: HttpRequest, caller: Caller, name: str) -> HttpResponse:
    """Point an alias at a ready version; creates the alias if there is none."""
    found = find(caller, name)
    form = PromoteForm(found, request.POST)
    if not form.is_valid():
        return _page(request, caller, found, form)
    version, alias = form.cleaned_data["version"], form.cleaned_data["alias"]
    with refusals_as_messages(request):
        found.promote(version, alias)
        messages.success(request, f"“{alias}” points at version {version.number}. {PINNED}")
    return redirect("adapters-one", caller.tenant.slug, name)


PINNED = "Open streams stay on the version they started with."


@require_POST
@tenant_page(EDIT)
def roll_back(request: HttpRequest, caller: Caller, name: str, alias: str) -> HttpResponse:
    """Point the alias at its previous version."""
    pointer = _alias(caller, name, alias)
    with refusals_as_messages(request):
        pointer.roll_back()
        number = pointer.version.number
        messages.success(request, f"“{alias}” is back at version {number}. {PINNED}")
    return redirect("adapters-one", caller.tenant.slug, name)


@require_POST
@tenant_page(EDIT)
def drop_alias(request: HttpRequest, caller: Caller, name: str, alias: str) -> HttpResponse:
    """Delete an alias; the version that it points at stays."""
    _alias(caller, name, alias).delete()
    messages.success(request, f"The alias “{alias}” is deleted. {PINNED}")
    return redirect("adapters-one", caller.tenant.slug, name)


def _alias(caller: Caller, name: str, alias: str) -> Alias:
    named = Alias.objects.filter(adapter__tenant=caller.tenant, adapter__name=name)
    return get_object_or_404(named.select_related("version"), name=alias)


@require_POST
@tenant_page(Permission.OPERATE)
def pin(request: HttpRequest, caller: Caller, name: str) -> HttpResponse:
    """Pin the live version, so that engines keep it loaded, or unpin it."""
    found = find(caller, name)
    found.pinned = request.POST.get("pinned") == "yes"
    found.save(update_fields=["pinned"])
    message = "Engines keep its live version loaded." if found.pinned else "It is no longer pinned."
    messages.success(request, message)
    return redirect("adapters-one", caller.tenant.slug, name)


@require_POST
@tenant_page(EDIT)
def retire(request: HttpRequest, caller: Caller, name: str) -> HttpResponse:
    """Delete an adapter without aliases, with its versions and files."""
    found = find(caller, name)
    with refusals_as_messages(request):
        found.retire()
        messages.success(request, f"The adapter “{name}” is deleted.")
        return redirect("adapters", caller.tenant.slug)
    return redirect("adapters-one", caller.tenant.slug, name)
