"""The inbox: notifications of a tenant, or of the installation, and which of them are new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from frontend.lists import older_than, page_of
from frontend.pages import operator_page, tenant_page
from tenants.models import Notification, Tenant, User
from tenants.models.notifications import NotificationKind
from tenants.notifications import inbox, mail
from tenants.permissions import Caller, Permission

Kind = NotificationKind
Data = Mapping[str, Any]
OF_TENANT: Mapping[Kind, Callable[[Data], tuple[str, Sequence[Any]]]] = {
    Kind.ADAPTER_READY: lambda data: ("adapters-version", [data["adapter"], data["version"]]),
    Kind.ADAPTER_REJECTED: lambda data: ("adapters-version", [data["adapter"], data["version"]]),
    Kind.BUDGET_REACHED: lambda data: ("limits", []),
    Kind.KEY_EXPIRING: lambda data: ("keys", []),
    Kind.ALERT_RAISED: lambda data: ("alerts", []),
    Kind.ALERT_RESOLVED: lambda data: ("alerts", []),
}
"""The page that a tenant's notification leads to, with its arguments."""
OF_INSTALLATION: Mapping[Kind, str] = {
    Kind.ENGINE_LOST: "operate_engines",
    Kind.LEDGER_DRIFT: "operate",
    Kind.ISOLATION_FAILED: "operate",
    Kind.ROLLOUT_STOPPED: "operate_models",
}
TONES = {
    Kind.ADAPTER_READY: "ok",
    Kind.ALERT_RESOLVED: "ok",
    Kind.BUDGET_REACHED: "warn",
    Kind.KEY_EXPIRING: "warn",
}
"""The others are bad news."""


@dataclass(frozen=True, slots=True)
class InboxRow:
    """One notification, in words."""

    notification: Notification
    title: str
    details: Sequence[str]
    url: str
    tone: str
    is_new: bool


@require_GET
@never_cache
@tenant_page(Permission.GET_NOTIFICATIONS)
def of_tenant(request: HttpRequest, caller: Caller) -> HttpResponse:
    return _page(request, caller.tenant, inbox.kinds_for(caller.tenant, caller.role))


@require_POST
@tenant_page(Permission.GET_NOTIFICATIONS, while_suspended=True)
def read(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Mark all up to the newest that the page showed as read."""
    _mark(request, caller.tenant)
    return redirect("inbox", caller.tenant.slug)


@require_GET
@never_cache
@operator_page
def of_installation(request: HttpRequest) -> HttpResponse:
    return _page(request, None, inbox.kinds_for(None, None))


@require_POST
@operator_page
def read_of_installation(request: HttpRequest) -> HttpResponse:
    """As `read`, for the whole installation."""
    _mark(request, None)
    return redirect("operate_inbox")


def _page(
    request: HttpRequest, tenant: Tenant | None, kinds: Sequence[NotificationKind]
) -> HttpResponse:
    assert isinstance(request.user, User)
    found, until = inbox.shown(tenant, kinds), inbox.read_until(request.user, tenant)
    if (before := _id(request.GET.get("before", ""))) is not None:
        found = older_than(found, get_object_or_404(found, pk=before), "at")
    page, last = page_of(found.select_related("tenant"))
    rows = [_row(one, is_new=one.at > until) for one in page]
    context = {"rows": rows, "last": last, "any_new": any(row.is_new for row in rows)}
    return render(request, "inbox.html", context)


def _row(notification: Notification, *, is_new: bool) -> InboxRow:
    title, details = mail.described(notification)
    tone = TONES.get(Kind(notification.kind), "bad")
    return InboxRow(notification, title, details, _url(notification), tone, is_new)


def _url(notification: Notification) -> str:
    """Where the notification leads; empty if what it is about has no page."""
    kind = Kind(notification.kind)
    if notification.tenant is None:
        return reverse(OF_INSTALLATION[kind])
    try:
        page, arguments = OF_TENANT[kind](notification.data)
        url = reverse(page, args=[notification.tenant.slug, *arguments])
    except (KeyError, NoReverseMatch):  # another release's data
        return ""
    key = notification.data.get("key") if kind == Kind.KEY_EXPIRING else None
    return f"{url}?{urlencode({'q': key})}" if key else url


def _mark(request: HttpRequest, tenant: Tenant | None) -> None:
    assert isinstance(request.user, User)
    newest = _id(request.POST.get("newest", ""))
    found = Notification.objects.filter(tenant=tenant).select_related("tenant")
    if newest is None:
        raise Http404
    inbox.mark_read(request.user, get_object_or_404(found, pk=newest))


def _id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
