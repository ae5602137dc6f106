"""The views for clients that list adapters, name their versions, and delete them.

A tag and a branch are both an alias: a name that points at a version and can be moved.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import msgspec
from django.core.exceptions import ValidationError
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse

from tenants.adapters.checks.findings import shown
from tenants.hub import repos
from tenants.hub.pulling import READ, described
from tenants.hub.pushing import EDIT
from tenants.hub.replies import HubError, RepoNotFound, RevisionNotFound, hub_view, read, reply
from tenants.models import LIVE, Alias
from tenants.permissions import Caller

MAX_LISTED = 500
"""Adapters on a page of a list."""


class NewTag(msgspec.Struct):
    tag: str


class NewBranch(msgspec.Struct):
    starting_point: str = msgspec.field(name="startingPoint", default=repos.MAIN)


class OldRepo(msgspec.Struct):
    name: str
    organization: str | None = None


@hub_view("GET", needs=READ)
def listed(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The tenant's adapters by name; `author` and `search` restrict them. Further pages are linked
    as the hub does."""
    asked = request.GET
    found = caller.tenant.adapters.filter(
        name__gt=asked.get("cursor", ""), name__contains=asked.get("search", "")
    )
    if asked.get("author", caller.tenant.slug) != caller.tenant.slug:
        found = found.none()
    live = Alias.objects.filter(name=LIVE).select_related("version")
    whole = found.select_related("tenant", "base_model").prefetch_related(
        Prefetch("aliases", live, to_attr="live")
    )
    limit = _limit(asked.get("limit", ""))
    page: list[Any] = list(whole.order_by("name")[: limit + 1])
    answer = reply(
        [described(one, one.live[0].version if one.live else None) for one in page[:limit]]
    )
    if len(page) > limit:
        query = urlencode(asked.dict() | {"cursor": page[limit - 1].name})
        answer["Link"] = f'<{repos.base_url(request)}/api/models?{query}>; rel="next"'
    return answer


def _limit(text: str) -> int:
    return min(int(text), MAX_LISTED) if text.isdecimal() and 0 < len(text) < 9 else MAX_LISTED


@hub_view("POST", "DELETE", needs=EDIT)
def branch(request: HttpRequest, caller: Caller, name: str, branch: str) -> dict[str, Any]:
    """Give a version a new name, or delete one."""
    if request.method == "DELETE":
        return _unnamed(caller, name, branch)
    return _named(caller, name, branch, read(request, NewBranch).starting_point)


@hub_view("POST", "DELETE", needs=EDIT)
def tag(request: HttpRequest, caller: Caller, name: str, revision: str) -> dict[str, Any]:
    """Give a version a new name, or delete the name `revision`."""
    if request.method == "DELETE":
        return _unnamed(caller, name, revision)
    return _named(caller, name, read(request, NewTag).tag, revision)


def _named(caller: Caller, name: str, alias: str, revision: str) -> dict[str, Any]:
    adapter = repos.find(caller, name)
    version = repos.version_of(adapter, revision)
    pointer = Alias(adapter=adapter, name=alias, version=version)
    try:
        pointer.clean_fields()
    except ValidationError as error:
        raise HubError(400, f"{shown(alias)}: {' '.join(error.messages)}") from None
    if alias == repos.MAIN or adapter.aliases.filter(name=alias).exists():
        raise HubError(409, f"{name} already has a revision {shown(alias)}.")
    adapter.promote(version, alias)
    return {}


def _unnamed(caller: Caller, name: str, alias: str) -> dict[str, Any]:
    adapter = repos.find(caller, name)
    if alias in (repos.MAIN, LIVE):
        raise HubError(400, f"`{alias}` is the version that {name} serves. Delete the adapter.")
    if not adapter.aliases.filter(name=alias).delete()[0]:
        raise RevisionNotFound(f"{name} has no tag or branch {shown(alias)}.")
    return {}


@hub_view("DELETE", needs=EDIT)
def delete(request: HttpRequest, caller: Caller) -> dict[str, Any]:
    """Delete the adapter with its versions and the names of these."""
    asked = read(request, OldRepo)
    if (asked.organization or caller.tenant.slug) != caller.tenant.slug:
        raise RepoNotFound
    if not repos.forget_created(caller, asked.name):
        repos.find(caller, asked.name).discard()
    return {}


@hub_view("POST", needs=EDIT)
def move(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Refused: what was used and billed is under the adapter's name."""
    raise HubError(400, "An adapter keeps its name. Push it under the new name, then delete this.")
