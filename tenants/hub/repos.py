"""Adapters as repositories: their names, revisions and files."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from django.core.cache import cache
from django.http import HttpRequest

from inference.content import FILES
from tenants.adapters import storage
from tenants.adapters.checks.findings import shown
from tenants.hub.replies import EntryNotFound, RepoNotFound, RevisionNotFound
from tenants.models import LIVE, Adapter, AdapterVersion, State
from tenants.permissions import Caller, Permission

PREFIX = "/hub"
MAIN = "main"
"""The revision that clients ask for by default."""
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_DIGEST = re.compile(r"[0-9a-f]{8,64}")


def base_url(request: HttpRequest) -> str:
    """The value of this client's HF_ENDPOINT."""
    return request.build_absolute_uri(PREFIX)


def url(request: HttpRequest, caller: Caller, name: str) -> str:
    return f"{base_url(request)}/{caller.tenant.slug}/{name}"


def commit_of(version: AdapterVersion) -> str:
    """Forty hexadecimal digits, which clients treat as an immutable commit."""
    return version.digest[:40]


NO_COMMIT = "0" * 40
CREATED_S = 24 * 3600
MAX_CREATED = 50


def present_commit(caller: Caller, name: str) -> str:
    """The commit of the live version, else of the last one; NO_COMMIT if there is none."""
    versions = AdapterVersion.objects.filter(
        adapter__tenant=caller.tenant, adapter__name=name
    ).order_by("-number")
    version = versions.filter(aliases__name=LIVE).first() or versions.first()
    return commit_of(version) if version else NO_COMMIT


def created(caller: Caller) -> list[str]:
    """Names under which clients created repositories that are empty still, the newest last. An
    adapter needs a base model, which its first version names, so there is no row for them."""
    found: list[str] = cache.get(_created_key(caller), [])
    return found


def is_empty(caller: Caller, name: str, revision: str | None) -> bool:
    """Whether this is a repository that was created and not pushed to."""
    return revision in (None, MAIN) and name in created(caller)


def note_created(caller: Caller, name: str) -> None:
    """Keep the name for CREATED_S; of a tenant only the last MAX_CREATED."""
    names = [*(one for one in created(caller) if one != name), name]
    cache.set(_created_key(caller), names[-MAX_CREATED:], CREATED_S)


def forget_created(caller: Caller, name: str) -> bool:
    """Returns whether the name was kept."""
    names = created(caller)
    if name not in names:
        return False
    cache.set(_created_key(caller), [one for one in names if one != name], CREATED_S)
    return True


def _created_key(caller: Caller) -> str:
    return f"hub-created:{caller.tenant.pk}"


def find(caller: Caller, name: str) -> Adapter:
    """The caller's adapter of this name. Raises RepoNotFound if the tenant has none."""
    adapter = caller.tenant.adapters.select_related("base_model").filter(name=name).first()
    if adapter is None:
        raise RepoNotFound
    return adapter


def version_of(adapter: Adapter, revision: str) -> AdapterVersion:
    """The ready version that `revision` names: `main` (the live one), a number, an alias, or the
    beginning of a digest, such as a commit.

    Raises:
        RevisionNotFound: there is none, or it is not ready.
    """
    versions = adapter.versions.all()
    if _NUMBER.fullmatch(revision):
        found = versions.filter(number=int(revision))
    else:
        found = versions.filter(aliases__name=LIVE if revision == MAIN else revision)
    pinned = list(found[:1])
    if not pinned and _DIGEST.fullmatch(revision):
        pinned = list(versions.filter(digest__startswith=revision)[:2])
    if len(pinned) != 1:
        problem = "has no live version" if revision == MAIN else f"has no version {shown(revision)}"
        raise RevisionNotFound(f"{adapter.name} {problem}.")
    if pinned[0].state != State.READY:
        message = f"Version {pinned[0].number} of {adapter.name} is {pinned[0].state}, not ready."
        raise RevisionNotFound(message)
    return pinned[0]


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a version."""

    version: AdapterVersion
    name: str

    @property
    def oid(self) -> str:
        """An id that is unique to the content, in the form of git's that clients expect."""
        return hashlib.sha1(f"{self.version.digest} {self.name}".encode()).hexdigest()

    @property
    def size(self) -> int:
        try:
            return storage.size(self.version.folder, self.name)
        except FileNotFoundError:  # it was deleted meanwhile
            raise EntryNotFound from None


def files_of(version: AdapterVersion) -> list[RepoFile]:
    originals = [f"{storage.ORIGINALS}/{name}" for name in version.converted]
    return [RepoFile(version, name) for name in (*FILES, *originals)]


def require_file(caller: Caller, name: str, path: str) -> None:
    """Raises EntryNotFound if no adapter has such a file; RepoNotFound if there is no adapter of
    this name and the caller could not push one either."""
    if path.removeprefix(f"{storage.ORIGINALS}/") in FILES:
        return
    if not caller.may(Permission.EDIT_ADAPTERS):
        find(caller, name)
    raise EntryNotFound
