"""The audit log of a tenant: who changed what, and from where."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.text import capfirst
from django.views.decorators.http import require_GET

from frontend.lists import older_page_of
from frontend.pages import as_file, tenant_page
from frontend.times import Day, midnight
from tenants.api.tables import CHUNK_ROWS
from tenants.models import AuditEntry, LimitSet
from tenants.models.audit import ACTIONS, SUBJECTS, AuditEntryQuerySet
from tenants.permissions import Caller, Permission

COLUMNS = (
    "id", "at", "actor_kind", "actor_id", "actor_name", "address", "request_id", "action", "kind",
    "name", "object_id", "before", "after",
)  # fmt: skip
NOTHING = "\u2013"
PLAIN = frozenset({"id", "tenant_id"})
"""Columns left out of the changes, since they say nothing on a tenant's page."""


class AuditFilter(forms.Form):
    """The list's filter; days are in UTC, and the period includes both of them."""

    kind = forms.ChoiceField(
        required=False,
        choices=[("", "Everything"), *((kind, capfirst(text)) for kind, text in SUBJECTS.items())],
        label="What",
    )
    action = forms.ChoiceField(
        required=False,
        choices=[("", "Anything"), *((name, name.capitalize()) for name in ACTIONS)],
    )
    actor = forms.CharField(
        required=False, max_length=100, label="Who", widget=forms.TextInput({"type": "search"})
    )
    since = Day(required=False, label="From")
    until = Day(required=False, label="To")

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = self.cleaned_data
        since, until = given.get("since"), given.get("until")
        if since and until and until < since:
            raise ValidationError({"until": f"{until} is before {since}."})
        return given

    def narrow(self, entries: AuditEntryQuerySet) -> AuditEntryQuerySet:
        """The entries that match a valid form."""
        given = self.cleaned_data
        exact = {name: given[name] for name in ("kind", "action") if given[name]}
        entries = entries.without_steps().filter(**exact)
        if who := given["actor"]:
            entries = entries.by(who)
        if given["since"]:
            entries = entries.filter(at__gte=midnight(given["since"]))
        if given["until"]:
            entries = entries.filter(at__lt=midnight(given["until"]) + timedelta(days=1))
        return entries


@dataclass(frozen=True, slots=True)
class AuditChange:
    """One column that differs."""

    name: str
    before: str
    after: str


@require_GET
@tenant_page(Permission.READ_AUDIT)
def audit(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The tenant's log, newest first."""
    form = AuditFilter(request.GET)
    context = context_of(request, form, AuditEntry.objects.filter(tenant=caller.tenant))
    return render(request, "audit.html", context, status=422 if form.errors else 200)


def context_of(
    request: HttpRequest, form: AuditFilter, entries: AuditEntryQuerySet
) -> dict[str, Any]:
    """Template context of the list; without entries if the form is invalid."""
    entries = form.narrow(entries) if form.is_valid() else entries.none()
    page, last = older_page_of(request, entries)
    query = request.GET.copy()
    query.pop("before", None)
    return {
        "entries": with_changes(page),
        "last": last,
        "filtered": any(query.values()),
        "query": query.urlencode(),
        "form": form,
    }


@require_GET
@tenant_page(Permission.READ_AUDIT)
def export(request: HttpRequest, caller: Caller) -> HttpResponseBase:
    """The same entries as CSV, over all pages."""
    form = AuditFilter(request.GET)
    if not form.is_valid():
        return HttpResponse(form.errors.as_text(), content_type="text/plain", status=422)
    found = form.narrow(AuditEntry.objects.filter(tenant=caller.tenant))
    slug = caller.tenant.slug
    return as_file(request, f"audit-{slug}.csv", COLUMNS, _rows(found), owner=slug)


def changes(entry: AuditEntry) -> list[AuditChange]:
    """The changes of an entry by column; for a created or deleted row, all its columns."""
    before, after = entry.before or {}, entry.after or {}
    names = sorted((before.keys() | after.keys()) - PLAIN)
    columns = [
        AuditChange(one.replace("_", " "), _value_text(before, one), _value_text(after, one))
        for one in names
    ]
    return [change for change in columns if change.before != change.after]


def with_changes(entries: Sequence[AuditEntry]) -> list[tuple[AuditEntry, str, list[AuditChange]]]:
    """Entries with their subject and changes."""
    ids = [entry.object_id for entry in entries if entry.kind == "limits" and entry.object_id]
    found = LimitSet.objects.filter(pk__in=ids).select_related("key", "adapter") if ids else []
    limits = {one.pk: one for one in found}
    return [(one, _about(one, limits.get(one.object_id or 0)), changes(one)) for one in entries]


def _about(entry: AuditEntry, limits: LimitSet | None) -> str:
    """The kind of the subject; for limits with their key or adapter, if it still exists."""
    if entry.kind != "limits":
        return SUBJECTS.get(entry.kind, entry.kind)
    if entry.tenant_id is None:
        return "default limits"
    kind = "ceiling" if entry.name == LimitSet.Author.OPERATOR else "limits"
    if limits is None or (limits.key is None and limits.adapter is None):
        return kind
    scope = f"key “{limits.key.name}”" if limits.key else f"adapter “{limits.adapter}”"
    return f"{kind} of the {scope}"


def _value_text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or NOTHING
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _rows(entries: AuditEntryQuerySet) -> Iterator[list[Any]]:
    for entry in entries.iterator(chunk_size=CHUNK_ROWS):
        yield [_cell(getattr(entry, name)) for name in COLUMNS]


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return json.dumps(value) if isinstance(value, dict) else value
