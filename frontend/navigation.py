"""The sidebar: only what the caller may see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse

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
    Entry("keys", "API keys", P.READ_KEYS),
    Entry("limits", "Limits", P.READ_LIMITS),
    Entry("members", "Members", P.READ_MEMBERS),
    Entry("audit", "Audit log", P.READ_AUDIT),
)
MAX_CHOICES = 100
"""Tenants in the switcher; an operator with more finds them on their page."""


@dataclass(frozen=True, slots=True)
class Link:
    title: str
    url: str
    current: bool


def navigation(request: HttpRequest) -> dict[str, object]:
    """A context processor: what the shell of every page shows."""
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return {}
    match = request.resolver_match
    slug = match.kwargs.get("slug") if match else None
    caller = Caller.of_user(user, slug) if slug else None
    return {
        "caller": caller,
        "tenant_links": list(_links(caller, match.url_name if match else "")) if caller else [],
        "tenant_choices": list(Tenant.objects.visible_to(user)[:MAX_CHOICES]),
    }


def _links(caller: Caller, here: str | None) -> Iterator[Link]:
    for entry in TENANT:
        if caller.may(entry.needs):
            url = reverse(entry.page, args=[caller.tenant.slug])
            yield Link(entry.title, url, entry.page == (here or "").partition("-")[0])
