"""`/v1/files`: which files are kept, for which keys and for how long, and which are refused before
they are read."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import openai
import pytest
from django.core.files.storage import storages
from django.utils import timezone
from pytest_django.fixtures import Settings

from tenants.files import blobs, keeping
from tenants.models import Batch, StoredFile, Tenant
from tenants.models.files import new_file_id
from tests.batches.conftest import Ask
from tests.storing import make_bytes, stored_files
from tests.tenants.making import make_key, make_tenant


def upload(ask: Ask, content: bytes = b"one\ntwo\n", **options: Any) -> Any:
    fields = {"purpose": "batch"} | options.pop("fields", {})
    return ask("POST", "files", files={"file": ("a.jsonl", content)}, data=fields, **options)


def test_a_file_is_kept_listed_read_and_deleted(ask: Ask) -> None:
    made = upload(ask).json()
    openai.types.FileObject.model_validate(made)
    assert (made["bytes"], made["filename"], made["status"]) == (8, "a.jsonl", "processed")
    assert ask("GET", f"files/{made['id']}").json() == made
    assert ask("GET", "files").json()["data"] == [made]
    content = ask("GET", f"files/{made['id']}/content")
    assert (content.content, content.headers["content-length"]) == (b"one\ntwo\n", "8")
    gone = ask("DELETE", f"files/{made['id']}")
    assert gone.json() == {"id": made["id"], "object": "file", "deleted": True}
    assert not blobs.exists(made["id"])
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert ask(method, f"files/{made['id']}{path}").status_code == 404


def test_files_come_in_pages(ask: Ask) -> None:
    ids = [upload(ask).json()["id"] for _ in range(3)]
    first = ask("GET", "files?limit=2").json()
    assert [one["id"] for one in first["data"]] == ids[:0:-1] and first["has_more"]
    rest = ask("GET", f"files?limit=2&after={first['last_id']}").json()
    assert [one["id"] for one in rest["data"]] == ids[:1] and not rest["has_more"]
    rising = ask("GET", "files?order=asc").json()
    assert [one["id"] for one in rising["data"]] == ids
    assert ask("GET", "files?purpose=fine-tune").json()["data"] == []
    assert ask("GET", "files?after=file-x").status_code == 400


def test_another_tenants_file_is_not_found(ask: Ask) -> None:
    made = upload(ask).json()
    _, stranger = make_key(make_tenant())
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = ask(method, f"files/{made['id']}{path}", secret=stranger)
        assert answer.status_code == 404
    assert ask("GET", "files", secret=stranger).json()["data"] == []
    assert ask("GET", f"files/{made['id']}").status_code == 200


@pytest.mark.parametrize("scope", ["usage:read", "adapters:write", "admin"])
def test_which_keys_may(ask: Ask, tenant: Tenant, scope: str) -> None:
    _, other = make_key(tenant, scope)
    assert upload(ask, secret=other).status_code == 403
    assert ask("GET", "files", secret=other).status_code == 403
    assert upload(ask, secret="").status_code == 401
    assert upload(ask, secret="lk_" + "a" * 12 + "_" + "b" * 43).status_code == 401


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "assistants"}, "purpose"),
        ({"purpose": "batch_output"}, "purpose"),
        ({"colour": "red"}, "colour"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "1"},
            "expires_after[seconds]",
        ),
        ({"expires_after[anchor]": "x", "expires_after[seconds]": "9999"}, "expires_after[anchor]"),
    ],
    ids=str,
)
def test_which_fields_are_refused(ask: Ask, fields: dict[str, str], param: str) -> None:
    answer = upload(ask, fields=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not StoredFile.objects.exists()


def test_which_bodies_are_refused(ask: Ask) -> None:
    assert upload(ask, content=b"").status_code == 400
    assert ask("POST", "files", data={"purpose": "batch"}).status_code == 400
    assert ask("POST", "files", json={"purpose": "batch"}).status_code == 400
    two = [("file", ("a", b"x")), ("file", ("b", b"y"))]
    assert ask("POST", "files", files=two, data={"purpose": "batch"}).status_code == 400
    other = {"document": ("a", b"x")}
    assert ask("POST", "files", files=other, data={"purpose": "batch"}).status_code == 400


def test_a_file_that_is_too_large_is_refused(ask: Ask, settings: Settings) -> None:
    settings.MAX_FILE_BYTES = 1000
    assert upload(ask, content=b"x" * 200_000).status_code == 413
    assert not stored_files(storages["files"])


def test_quotas(ask: Ask, tenant: Tenant, settings: Settings) -> None:
    upload(ask, content=b"x" * 1000)
    tenant.max_stored_bytes = 1500
    tenant.save()
    full = upload(ask, content=b"x" * 1000)
    assert (full.status_code, full.json()["error"]["code"]) == (403, "storage_quota_exceeded")
    tenant.max_stored_bytes = None
    tenant.save()
    settings.TENANT_FILES = 1
    assert upload(ask).status_code == 403
    assert tenant.files.count() == 1


def test_files_expire(ask: Ask, tenant: Tenant) -> None:
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    made = upload(ask, fields=fields).json()
    assert made["expires_at"] - made["created_at"] in (3599, 3600, 3601)
    kept = upload(ask, fields={"purpose": "user_data"}).json()
    assert kept["expires_at"] is None
    StoredFile.objects.filter(pk=made["id"]).update(expires_at=timezone.now())
    assert ask("GET", f"files/{made['id']}").status_code == 404
    batch = Batch.objects.create(
        tenant=tenant,
        key=tenant.keys.get(),
        input_file_id=made["id"],
        operation="chat",
        endpoint="/v1/chat/completions",
        expires_at=timezone.now() + timedelta(hours=1),
    )
    keeping.remove_expired()
    assert blobs.exists(made["id"]), "a batch reads it"
    batch.cancel()
    keeping.remove_expired()
    assert [*tenant.files.values_list("pk", flat=True)] == [kept["id"]]
    assert not blobs.exists(made["id"]) and blobs.exists(kept["id"])


def test_files_left_by_killed_processes_are_removed_after_a_day(ask: Ask) -> None:
    kept = upload(ask).json()["id"]
    stray, young = new_file_id(), new_file_id()
    for id in (stray, young):
        make_bytes(id, b"")
    old = time.time() - 2 * 86_400
    for id in (stray, kept):
        os.utime(storages["files"].path(id), (old, old))
    keeping.remove_strays()
    assert stored_files(storages["files"]) == sorted([kept, young])
