"""The sidebar, with only those pages that the caller may see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Value
from django.db.models.expressions import Combinable
from django.http import HttpRequest
from django.utils import timezone

from frontend.lists import address
from frontend.sign_in import second_factor
from tenants.models import Tenant, User
from tenants.notifications import inbox, mail
from tenants.permissions import Caller, Permission

P = Permission


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """One line of a tenant's sidebar: a page by its URL name, in a group, with an icon."""

    page: str
    title: str
    needs: Permission
    icon: str
    group: str = ""


OBSERVE, ACCESS, SERVE = "Observe", "Access", "Serve"
TENANT = (
    NavigationEntry("overview", "Overview", P.READ_TENANT, "house"),
    NavigationEntry("playground", "Playground", P.USE_PLAYGROUND, "message-circle"),
    NavigationEntry("adapters", "Adapters", P.READ_ADAPTERS, "layers"),
    NavigationEntry("fine-tuning", "Fine-tuning", P.EDIT_ADAPTERS, "sliders-horizontal"),
    NavigationEntry("inbox", "Inbox", P.GET_NOTIFICATIONS, "bell"),
    NavigationEntry("requests", "Requests", P.READ_OWN_USAGE, "list", OBSERVE),
    NavigationEntry("batches", "Batches", P.USE_FILES, "box", OBSERVE),
    NavigationEntry("evals", "Evals", P.USE_FILES, "check", OBSERVE),
    NavigationEntry("usage", "Usage", P.READ_OWN_USAGE, "chart-column", OBSERVE),
    NavigationEntry("engines", "Engines", P.READ_ADAPTERS, "server", OBSERVE),
    NavigationEntry("keys", "API keys", P.READ_KEYS, "key-round", ACCESS),
    NavigationEntry("limits", "Limits", P.READ_LIMITS, "gauge", ACCESS),
    NavigationEntry("members", "Members", P.READ_MEMBERS, "users", ACCESS),
    NavigationEntry("alerts", "Alerts", P.GET_NOTIFICATIONS, "triangle-alert", ACCESS),
    NavigationEntry(
        "notifications", "Notifications", P.GET_NOTIFICATIONS, "sliders-horizontal", ACCESS
    ),
    NavigationEntry("content", "Stored prompts", P.READ_TENANT, "archive", ACCESS),
    NavigationEntry("audit", "Audit log", P.READ_AUDIT, "file-text", ACCESS),
    NavigationEntry("data", "Export and deletion", P.EXPORT_TENANT, "download", ACCESS),
)
OPERATOR = (
    ("operate", "Overview", "house", ""),
    ("operate_tenants", "Tenants", "building-2", ""),
    ("operate_users", "Users", "user-cog", ""),
    ("operate_inbox", "Inbox", "bell", ""),
    ("operate_requests", "Requests", "list", OBSERVE),
    ("operate_usage", "Usage", "chart-column", OBSERVE),
    ("operate_engines", "Engines", "server", OBSERVE),
    ("operate_notifications", "Notifications", "sliders-horizontal", OBSERVE),
    ("operate_audit", "Audit log", "file-text", OBSERVE),
    ("operate_models", "Base models", "box", SERVE),
    ("operate_prices", "Prices", "tag", SERVE),
    ("operate_limits", "Default limits", "sliders-horizontal", SERVE),
    ("operate_sizing", "Sizing", "chart-column", SERVE),
    ("operate_quarantine", "Quarantine", "shield-alert", SERVE),
)
"""The installation's pages: URL name, title, icon and group; for operators."""
GO = {
    "overview": "o",
    "playground": "p",
    "adapters": "a",
    "requests": "r",
    "batches": "y",
    "evals": "4",
    "fine-tuning": "5",
    "usage": "u",
    "keys": "k",
    "limits": "l",
    "members": "m",
    "engines": "e",
    "notifications": "n",
    "content": "z",
    "inbox": "1",
    "alerts": "2",
    "audit": "h",
    "data": "0",
    "operate": "i",
    "operate_tenants": "t",
    "operate_users": "w",
    "operate_requests": "q",
    "operate_usage": "s",
    "operate_models": "b",
    "operate_limits": "d",
    "operate_prices": "c",
    "operate_engines": "f",
    "operate_quarantine": "x",
    "operate_sizing": "6",
    "operate_notifications": "v",
    "operate_inbox": "3",
    "operate_audit": "j",
}
"""Keyboard shortcuts: the key to press after `g`, by URL name."""
TENANTS_PATH = re.compile(r"/t/([-a-zA-Z0-9_]+)/")
MAX_CHOICES = 100
"""Tenants in the tenant menu; operators find the others on the tenants page."""
SEARCHED_FROM = 8
"""Number of tenants from which the tenant menu has a search box."""


@dataclass(frozen=True, slots=True)
class NavigationLink:
    title: str
    url: str
    current: bool
    key: str
    icon: str
    group: str


def navigation(request: HttpRequest) -> dict[str, object]:
    """Context processor for the layout of every page."""
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return page_facts()
    match = request.resolver_match
    here = ((match.url_name if match else "") or "").partition("-")[0]
    slug = match.kwargs.get("slug") if match else slug_in(request.path)
    caller = getattr(request, "caller", None) or (Caller.of_user(user, slug) if slug else None)
    visible = Tenant.objects.visible_to(user).customers()
    # One query for both: each costs every page.
    tenants = visible.annotate(unread=_unread(user, caller)).values_list("slug", "name", "unread")
    choices = list(tenants[: MAX_CHOICES + 1])
    return page_facts() | {
        "caller": caller,
        "unread": choices[0][2] if choices else 0,
        "inbox_url": _inbox_url(user, caller),
        "lacks_second_factor": second_factor.is_missing(request),
        "tenant_links": list(tenant_links(caller, here)) if caller else [],
        "operator_links": list(operator_links(here)) if user.is_staff else [],
        "tenant_choices": [
            (name, address("overview", slug), slug) for slug, name, _ in choices[:MAX_CHOICES]
        ],
        "more_tenants": len(choices) > MAX_CHOICES,
        "tenants_searched": len(choices) >= SEARCHED_FROM,
    }


def _unread(user: User, caller: Caller | None) -> Combinable:
    """How many notifications of this place the user has not read, up to `inbox.MOST`. An operator
    who looks into a tenant is not its addressee."""
    if caller is not None and caller.role is not None:
        return inbox.unread(user, caller.tenant, inbox.kinds_for(caller.tenant, caller.role))
    if caller is None and user.is_staff:
        return inbox.unread(user, None, inbox.kinds_for(None, None))
    return Value(0)


def _inbox_url(user: User, caller: Caller | None) -> str:
    """The inbox of this place; empty if the user has none."""
    if caller is not None:
        may = caller.may(Permission.GET_NOTIFICATIONS)
        return address("inbox", caller.tenant.slug) if may else ""
    return address("operate_inbox") if user.is_staff else ""


def slug_in(path: str) -> str | None:
    """The tenant's slug in an address that leads to no page."""
    found = TENANTS_PATH.match(path)
    return found[1] if found else None


def page_facts() -> dict[str, object]:
    """Facts about the installation that every page needs."""
    return {
        "api_url": settings.API_URL,  # to which pages open their sockets
        "currency": settings.CURRENCY.upper(),
        "zone": timezone.get_current_timezone_name(),
        "sends_mail": mail.is_sent(),
    }


def operator_links(here: str = "") -> Iterator[NavigationLink]:
    """The installation's pages; `here` is the URL name of the current one."""
    for page, title, icon, group in OPERATOR:
        yield NavigationLink(title, address(page), page == here, GO[page], icon, group)


def tenant_links(caller: Caller, here: str = "") -> Iterator[NavigationLink]:
    """The pages of the tenant that the caller may see."""
    for entry in TENANT:
        if caller.may(entry.needs):
            url = address(entry.page, caller.tenant.slug)
            here_now = entry.page == here
            yield NavigationLink(
                entry.title, url, here_now, GO[entry.page], entry.icon, entry.group
            )
