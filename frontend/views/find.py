"""Search for the command palette: pages, adapters, keys and tenants that the caller may see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlencode

from django.db.models import Q
from django.http import HttpRequest, JsonResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from frontend.lists import words_of
from frontend.navigation import NavigationLink, operator_links, tenant_links
from frontend.pages import signed_in, tenant_page
from frontend.views.requests.requests import WHOLE_ID
from tenants.models import Tenant, User
from tenants.models.usage.listed import REQUEST_ID
from tenants.permissions import Caller, Permission

MOST = 6
"""Results of each kind."""
MAX_WORDS = 100
"""Longest search text."""

ACTIONS = (
    ("Create key", "keys", "new-key", Permission.EDIT_OWN_KEYS),
    ("Upload adapter", "adapters", "upload", Permission.EDIT_ADAPTERS),
    ("Invite member", "members", "invite", Permission.EDIT_MEMBERS),
    ("Edit limits", "limits", "edit-tenant", Permission.EDIT_LIMITS),
    ("Add alert rule", "alerts", "new-rule", Permission.EDIT_ALERTS),
    ("Add webhook", "notifications", "new-webhook", Permission.EDIT_WEBHOOKS),
    ("Open playground", "playground", "", Permission.USE_PLAYGROUND),
    ("New conversation", "playground", "", Permission.USE_PLAYGROUND),
    ("Require second factor", "members", "require-factor", Permission.EDIT_SIGN_IN),
    ("New batch", "batches-new", "", Permission.USE_FILES),
    ("Upload file", "batches-files", "upload", Permission.USE_FILES),
    ("Save view of requests", "requests", "save-view", Permission.READ_OWN_USAGE),
)
"""Title, page, dialog to open there, and required permission."""
OPERATORS_ACTIONS = (
    ("Create tenant", "operate_tenants", "new-tenant"),
    ("Create engine credential", "operate_engines-credentials", "new-credential"),
    ("Edit default limits", "operate_limits", "edit-defaults"),
    ("Add installation webhook", "operate_notifications", "new-webhook"),
)

Found = dict[str, str]
"""One result, with `kind`, `title` and `url`."""


@require_GET
@tenant_page(Permission.READ_TENANT)
def of_tenant(request: HttpRequest, caller: Caller) -> JsonResponse:
    """Search on a tenant's pages, which includes its adapters and keys."""
    words = words_of(request)[:MAX_WORDS]
    pages = _matching(tenant_links(caller), caller.tenant.name, words)
    found = [*pages, *_request(caller, words), *_adapters(caller, words), *_keys(caller, words)]
    return _answer(request, [*found, *_actions(caller, words)])


@require_GET
@signed_in
def anywhere(request: HttpRequest) -> JsonResponse:
    """Search on all other pages."""
    return _answer(request, [])


def _answer(request: HttpRequest, found: list[Found]) -> JsonResponse:
    user = request.user
    assert isinstance(user, User)
    words = words_of(request)[:MAX_WORDS]
    if user.is_staff:
        found += [*_matching(operator_links(), "Installation", words), *_operators_actions(words)]
    answer = JsonResponse({"found": [*found, *_tenants(user, words)]})
    answer["Cache-Control"] = "no-store"
    return answer


def _actions(caller: Caller, words: str) -> Iterator[Found]:
    """Actions that the caller may take here: each opens a page, most of them with a dialog."""
    for title, page, opened, needs in ACTIONS:
        if words and words.lower() in title.lower() and caller.may(needs):
            yield _action(title, reverse(page, args=[caller.tenant.slug]), opened)


def _operators_actions(words: str) -> Iterator[Found]:
    for title, page, opened in OPERATORS_ACTIONS:
        if words and words.lower() in title.lower():
            yield _action(title, reverse(page), opened)


def _action(title: str, url: str, opened: str) -> Found:
    return {"kind": "Action", "title": title, "url": f"{url}#{opened}" if opened else url}


def _request(caller: Caller, words: str) -> Iterator[Found]:
    """A link to the request with this id; only the page it opens says whether there is one."""
    form = REQUEST_ID.fullmatch(words)
    if form and len(form[1]) >= WHOLE_ID and caller.may(Permission.READ_OWN_USAGE):
        url = reverse("requests", args=[caller.tenant.slug])
        yield {"kind": "Request", "title": words, "url": f"{url}?{urlencode({'q': words})}"}


def _matching(links: Iterable[NavigationLink], kind: str, words: str) -> Iterator[Found]:
    words = words.lower()
    for link in links:
        if words in link.title.lower() or kind.lower().startswith(words):
            yield {"kind": kind, "title": link.title, "url": link.url}


def _adapters(caller: Caller, words: str) -> Iterator[Found]:
    if not words or not caller.may(Permission.READ_ADAPTERS):
        return
    for name in _first(caller.tenant.adapters.filter(name__icontains=words)):
        url = reverse("adapters-one", args=[caller.tenant.slug, name])
        yield {"kind": "Adapter", "title": name, "url": url}


def _keys(caller: Caller, words: str) -> Iterator[Found]:
    if not words or not caller.may(Permission.READ_KEYS):
        return
    live = caller.tenant.keys.with_text().filter(revoked_at=None, name__icontains=words)
    for name in _first(live):
        url = reverse("keys", args=[caller.tenant.slug]) + "?" + urlencode({"q": name})
        yield {"kind": "API key", "title": name, "url": url}


def _first(things: Any) -> list[str]:
    """The first distinct names."""
    names = things.order_by("name").values_list("name", flat=True)
    return list(names.distinct()[:MOST])


def _tenants(user: User, words: str) -> Iterator[Found]:
    if not words:
        return
    named = Q(name__icontains=words) | Q(slug__icontains=words)
    for tenant in Tenant.objects.visible_to(user).customers().filter(named).order_by("name")[:MOST]:
        url = reverse("overview", args=[tenant.slug])
        yield {"kind": "Tenant", "title": tenant.name, "url": url}
