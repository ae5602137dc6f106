"""The sidebar, with only those pages that the caller may see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse

from frontend import second_factor
from tenants.models import Tenant, User
from tenants.permissions import Caller, Permission

P = Permission


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the sidebar: a page by its URL name."""

    page: str
    title: str
    needs: Permission


TENANT = (
    Entry("overview", "Overview", P.READ_TENANT),
    Entry("playground", "Playground", P.USE_PLAYGROUND),
    Entry("adapters", "Adapters", P.READ_ADAPTERS),
    Entry("requests", "Requests", P.READ_OWN_USAGE),
    Entry("usage", "Usage", P.READ_OWN_USAGE),
    Entry("keys", "API keys", P.READ_KEYS),
    Entry("limits", "Limits", P.READ_LIMITS),
    Entry("members", "Members", P.READ_MEMBERS),
    Entry("engines", "Engines", P.READ_ADAPTERS),
    Entry("notifications", "Notifications", P.EDIT_TENANT),
    Entry("audit", "Audit log", P.READ_AUDIT),
)
OPERATOR = (
    ("operate", "Overview"),
    ("operate_tenants", "Tenants"),
    ("operate_users", "Users"),
    ("operate_requests", "Requests"),
    ("operate_models", "Base models"),
    ("operate_limits", "Default limits"),
    ("operate_prices", "Prices"),
    ("operate_engines", "Engines"),
    ("operate_quarantine", "Quarantine"),
    ("operate_notifications", "Notifications"),
    ("operate_audit", "Audit log"),
)
"""The installation's pages, by URL name; for operators."""
GO = {
    "overview": "o",
    "playground": "p",
    "adapters": "a",
    "requests": "r",
    "usage": "u",
    "keys": "k",
    "limits": "l",
    "members": "m",
    "engines": "e",
    "notifications": "n",
    "audit": "h",
    "operate": "i",
    "operate_tenants": "t",
    "operate_users": "w",
    "operate_requests": "q",
    "operate_models": "b",
    "operate_limits": "d",
    "operate_prices": "c",
    "operate_engines": "f",
    "operate_quarantine": "x",
    "operate_notifications": "v",
    "operate_audit": "j",
}
"""Keyboard shortcuts: the key to press after `g`, by URL name."""
MAX_CHOICES = 100
"""Tenants in the switcher; operators find the others on the tenants page."""


@dataclass(frozen=True, slots=True)
class Link:
    title: str
    url: str
    current: bool
    key: str


def navigation(request: HttpRequest) -> dict[str, object]:
    """Context processor for the layout of every page."""
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return {}
    match = request.resolver_match
    here = ((match.url_name if match else "") or "").partition("-")[0]
    slug = match.kwargs.get("slug") if match else None
    caller = getattr(request, "caller", None) or (Caller.of_user(user, slug) if slug else None)
    return {
        "api_url": settings.API_URL,  # to which pages open their sockets
        "caller": caller,
        "lacks_second_factor": second_factor.is_missing(request),
        "tenant_links": list(tenant_links(caller, here)) if caller else [],
        "operator_links": list(operator_links(here)) if user.is_staff else [],
        "tenant_choices": list(Tenant.objects.visible_to(user)[:MAX_CHOICES]),
    }


def operator_links(here: str = "") -> Iterator[Link]:
    """The installation's pages; `here` is the URL name of the current one."""
    for page, title in OPERATOR:
        yield Link(title, reverse(page), page == here, GO[page])


def tenant_links(caller: Caller, here: str = "") -> Iterator[Link]:
    """The pages of the tenant that the caller may see."""
    for entry in TENANT:
        if caller.may(entry.needs):
            url = reverse(entry.page, args=[caller.tenant.slug])
            yield Link(entry.title, url, entry.page == here, GO[entry.page])
