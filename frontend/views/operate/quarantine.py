"""Entries that engines reported and no gateway dispatched: show why, bill, dismiss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from frontend import bulk
from frontend.lists import older_page_of
from frontend.pages import operator_page, refusals_as_messages
from inference.link.accounts import LedgerEntry
from tenants.billing import decisions
from tenants.models import ApiKey, QuarantinedEntry, Tenant, User
from tenants.models.audit import actor_of
from tenants.models.fleet.quarantine import Decision

BIGGEST_ID = 2**63 - 1
STATES = {"": "Open", Decision.BILLED: "Billed", Decision.DISMISSED: "Dismissed", "all": "All"}

BILL = bulk.Action(
    "Bill",
    "Bill the selected entries?",
    "Each is billed to the tenant it names, as its engine reported it. This cannot be undone.",
)
DISMISS = bulk.Action(
    "Dismiss",
    "Dismiss the selected entries?",
    "Nobody is billed for them, and they stay in this list. This cannot be undone.",
)


@dataclass(frozen=True, slots=True)
class QuarantinedRow:
    """One entry with its content, None if unreadable, and the tenant and key that it would be
    billed to, None if there are none with these ids."""

    kept: QuarantinedEntry
    reported: LedgerEntry | None
    tenant: Tenant | None
    key: ApiKey | None
    billable: bool

    @property
    def another_tenants_key(self) -> bool:
        tenant, key = self.tenant, self.key
        return key is not None and (tenant is None or key.tenant_id != tenant.pk)


def rows_of(found: Sequence[QuarantinedEntry]) -> list[QuarantinedRow]:
    """The entries with the tenants and keys that they name."""
    reported = [decisions.reported_entry(entry) for entry in found]
    accounts = [entry.account for entry in reported if entry is not None]
    tenants = Tenant.objects.in_bulk(_ids(account.tenant_id for account in accounts))
    keys = ApiKey.objects.in_bulk(_ids(account.key_id for account in accounts))

    def row(kept: QuarantinedEntry, entry: LedgerEntry | None) -> QuarantinedRow:
        if entry is None:
            return QuarantinedRow(kept, None, None, None, billable=False)
        tenant, key = tenants.get(entry.account.tenant_id), keys.get(entry.account.key_id)
        billable = tenant is not None and decisions.is_billable(entry)
        return QuarantinedRow(kept, entry, tenant, key, billable)

    return [row(kept, entry) for kept, entry in zip(found, reported, strict=True)]


def _ids(ids: Iterable[int]) -> set[int]:
    """The ids that a row can have."""
    return {id for id in ids if 0 < id <= BIGGEST_ID}


@require_GET
@operator_page
def quarantine(request: HttpRequest) -> HttpResponse:
    """The list, newest first."""
    state = request.GET.get("state", "")
    found = QuarantinedEntry.objects.select_related("credential", "decided_by")
    if state != "all":
        state = state if state in STATES else ""
        found = found.filter(status=state or Decision.OPEN)
    entries, last = older_page_of(request, found)
    context = {
        "rows": rows_of(entries),
        "last": last,
        "state": state,
        "states": STATES.items(),
        "bulk": [
            BILL.of("operate_quarantine-bill-some"),
            DISMISS.of("operate_quarantine-dismiss-some"),
        ],
    }
    return render(request, "operate/quarantine.html", context)


@require_POST
@operator_page
def bill(request: HttpRequest, pk: int) -> HttpResponse:
    """Bill the entry after all."""
    entry = get_object_or_404(QuarantinedEntry, pk=pk)
    assert isinstance(request.user, User)
    with refusals_as_messages(request):
        decisions.bill(entry, request.user, actor_of(request))
        messages.success(request, f"The request {entry.request_id} is billed.")
    return redirect("operate_quarantine")


@require_POST
@operator_page
def dismiss(request: HttpRequest, pk: int) -> HttpResponse:
    """Dismiss the entry: nobody is billed for it."""
    entry = get_object_or_404(QuarantinedEntry, pk=pk)
    assert isinstance(request.user, User)
    with refusals_as_messages(request):
        decisions.dismiss(entry, request.user)
        messages.success(request, f"The entry of the request {entry.request_id} is dismissed.")
    return redirect("operate_quarantine")


@require_POST
@operator_page
def bill_some(request: HttpRequest) -> HttpResponse:
    """Bill the chosen entries after all."""
    user = request.user
    assert isinstance(user, User)

    def one(id: str) -> None:
        entry = get_object_or_404(QuarantinedEntry, pk=bulk.number(id))
        decisions.bill(entry, user, actor_of(request))

    bulk.act(request, one, "entry,entries", "billed")
    return redirect("operate_quarantine")


@require_POST
@operator_page
def dismiss_some(request: HttpRequest) -> HttpResponse:
    """Dismiss the chosen entries: nobody is billed for them."""
    user = request.user
    assert isinstance(user, User)

    def one(id: str) -> None:
        decisions.dismiss(get_object_or_404(QuarantinedEntry, pk=bulk.number(id)), user)

    bulk.act(request, one, "entry,entries", "dismissed")
    return redirect("operate_quarantine")
