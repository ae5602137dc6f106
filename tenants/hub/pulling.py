"""The views for clients that inspect or download an adapter."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from tenants.adapters import storage
from tenants.hub import repos
from tenants.hub.replies import EntryNotFound, HubError, hub_view
from tenants.models import LIVE, Adapter, AdapterVersion, Scope, State
from tenants.permissions import Caller, Permission

READ, PULL = Permission.READ_ADAPTERS, Permission.PULL_ADAPTERS
CHUNK_BYTES = 1 << 20
TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
"""The hub's form of times, all of which are UTC."""
_REST = re.compile(r"bytes=(\d{1,18})-")
"""A request for the rest of a file. Other ranges are ignored and get the whole file, as HTTP
allows."""


@hub_view("GET")
def whoami(request: HttpRequest, caller: Caller) -> dict[str, Any]:
    """The key's tenant, presented as a user of the hub. `lorikeet` is for our own client."""
    key = caller.key
    assert key is not None
    writes = caller.may(Permission.EDIT_ADAPTERS)
    token = {"displayName": key.name, "role": "write" if writes else "read"}
    return {
        "type": "user",
        "id": caller.tenant.slug,
        "name": caller.tenant.slug,
        "fullname": caller.tenant.name,
        "orgs": [],
        "auth": {"type": "access_token", "accessToken": token},
        "lorikeet": {"scopes": sorted(Scope(one).value for one in key.scopes),
                     "api_url": settings.API_URL},
    }  # fmt: skip


@hub_view("GET", "HEAD", needs=READ)
def info(
    request: HttpRequest, caller: Caller, name: str, revision: str | None = None
) -> dict[str, Any]:
    """The adapter at a revision. Without a revision it is found even if no version is live, or if
    it was only created."""
    if repos.is_empty(caller, name, revision):
        return _described(f"{caller.tenant.slug}/{name}", caller.tenant.slug)
    adapter = repos.find(caller, name)
    if revision is None:
        version = adapter.versions.filter(aliases__name=LIVE).first()
    else:
        version = repos.version_of(adapter, revision)
    return described(adapter, version, sizes="blobs" in request.GET)


def described(
    adapter: Adapter, version: AdapterVersion | None, *, sizes: bool = False
) -> dict[str, Any]:
    """An adapter as clients know a repository, with this version's files."""
    files = repos.files_of(version) if version else []
    changed = version.created_at if version else adapter.created_at
    return _described(f"{adapter.tenant.slug}/{adapter.name}", adapter.tenant.slug) | {
        "sha": repos.commit_of(version) if version else None,
        "createdAt": adapter.created_at.strftime(TIME),
        "lastModified": changed.strftime(TIME),
        "tags": ["peft", "lora", f"base_model:adapter:{adapter.base_model.name}"],
        "siblings": [
            {"rfilename": file.name} | ({"size": file.size, "blobId": file.oid} if sizes else {})
            for file in files
        ],
    }


def _described(id: str, author: str) -> dict[str, Any]:
    """What is the same of all, and all that is known of an empty one."""
    return {
        "id": id,
        "modelId": id,
        "author": author,
        "sha": repos.NO_COMMIT,
        "private": True,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "library_name": "peft",
        "tags": ["peft", "lora"],
        "siblings": [],
    }


@hub_view("GET", "HEAD", needs=READ)
def tree(
    request: HttpRequest, caller: Caller, name: str, revision: str, path: str = ""
) -> list[dict[str, Any]]:
    """The version's files; there are no folders."""
    if repos.is_empty(caller, name, revision):
        return []
    version = repos.version_of(repos.find(caller, name), revision)
    if path:
        raise EntryNotFound
    return [_file(file) for file in repos.files_of(version)]


@hub_view("GET", needs=READ)
def auth_check(request: HttpRequest, caller: Caller, name: str) -> HttpResponse:
    """Whether the caller may read the adapter."""
    repos.find(caller, name)
    return HttpResponse()


@hub_view("GET", needs=READ)
def refs(request: HttpRequest, caller: Caller, name: str) -> dict[str, Any]:
    """The aliases as branches, `live` as `main`, and the ready versions as tags."""
    adapter = repos.find(caller, name)
    aliases = adapter.aliases.select_related("version").order_by("name")
    ready = adapter.versions.filter(state=State.READY).order_by("number")
    branches = {repos.MAIN if one.name == LIVE else one.name: one.version for one in aliases}
    return {
        "branches": [_ref("heads", branch, version) for branch, version in branches.items()],
        "tags": [_ref("tags", str(version.number), version) for version in ready],
        "converts": [],
        "pullRequests": [],
    }


def _ref(kind: str, name: str, version: AdapterVersion) -> dict[str, str]:
    commit = repos.commit_of(version)
    return {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit}


@hub_view("GET", needs=READ)
def commits(request: HttpRequest, caller: Caller, name: str, revision: str) -> list[dict[str, Any]]:
    """The versions up to the one that `revision` names, the last one first."""
    adapter = repos.find(caller, name)
    last = repos.version_of(adapter, revision)
    found = adapter.versions.filter(number__lte=last.number).select_related("created_by")
    return [
        {
            "id": repos.commit_of(version),
            "title": f"Version {version.number}",
            "message": version.state,
            "authors": [{"user": str(version.created_by or "an API key")}],
            "date": version.created_at.strftime(TIME),
        }
        for version in found.order_by("-number")
    ]


@hub_view("POST", needs=READ)
def paths_info(
    request: HttpRequest, caller: Caller, name: str, revision: str
) -> list[dict[str, Any]]:
    """Those of the paths in a form that are files of the version."""
    asked = {path.strip("/") for path in request.POST.getlist("paths")}
    version = repos.version_of(repos.find(caller, name), revision)
    return [_file(file) for file in repos.files_of(version) if file.name in asked]


def _file(file: repos.RepoFile) -> dict[str, Any]:
    return {"type": "file", "path": file.name, "size": file.size, "oid": file.oid}


@hub_view("GET", "HEAD", needs=PULL)
def resolve(
    request: HttpRequest, caller: Caller, name: str, revision: str, path: str
) -> HttpResponseBase:
    """A file, or the rest of it."""
    repos.require_file(caller, name, path)
    file = repos.RepoFile(repos.version_of(repos.find(caller, name), revision), path)
    _require_usable(caller, name)
    size, start = file.size, _start(request)
    if start >= size > 0:
        raise HubError(416, f"{path} has {size} bytes.")
    headers = {
        "ETag": f'"{file.oid}"',
        "X-Repo-Commit": repos.commit_of(file.version),
        "Accept-Ranges": "bytes",
        "Content-Length": str(size - start),
        "Content-Disposition": f'attachment; filename="{path.rpartition("/")[2]}"',
    }
    if start:
        headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
    kind = "application/octet-stream"
    if request.method == "HEAD":
        return HttpResponse(content_type=kind, headers=headers)
    status = 206 if start else 200
    content = _read(file.version.folder, path, start)
    return StreamingHttpResponse(content, status=status, content_type=kind, headers=headers)


def _require_usable(caller: Caller, name: str) -> None:
    """A key that is limited to some models downloads no others."""
    if caller.key is not None and not caller.key.may_use(name):
        raise HubError(403, f"This API key is not allowed to use {name}.")


def _start(request: HttpRequest) -> int:
    asked = _REST.fullmatch(request.headers.get("Range", ""))
    return int(asked[1]) if asked and request.method == "GET" else 0


async def _read(folder: str, name: str, start: int) -> AsyncIterator[bytes]:
    """The file in chunks, read as the client takes them, so that a slow one delays nobody else."""
    file = await asyncio.to_thread(storage.open_file, folder, name)
    with closing(file):
        await asyncio.to_thread(file.seek, start)
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
