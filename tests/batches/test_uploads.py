"""`/v1/uploads`: files that are uploaded in parts."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import openai
import pytest
from django.core.files.storage import storages
from django.utils import timezone
from openai.types.uploads import UploadPart as SentPart
from pytest_django.fixtures import Settings

from tenants.adapters.quota import Storage
from tenants.files import jobs, uploads
from tenants.models import Tenant, Upload, UploadPart
from tests.batches.conftest import Ask
from tests.storing import stored_files
from tests.tenants.making import make_key, make_tenant

CONTENT = b"one\ntwo\nthree\n"


def begin(ask: Ask, size: int = len(CONTENT), **changed: Any) -> Any:
    body = {"filename": "a.jsonl", "purpose": "batch", "bytes": size, "mime_type": "text/plain"}
    return ask("POST", "uploads", json={**body, **changed})


def send(ask: Ask, upload: Any, content: bytes, **options: Any) -> Any:
    path = f"uploads/{upload['id']}/parts"
    return ask("POST", path, files={"data": ("part", content)}, **options)


def complete(ask: Ask, upload: Any, *parts: Any, **more: Any) -> Any:
    body = {"part_ids": [part["id"] for part in parts], **more}
    return ask("POST", f"uploads/{upload['id']}/complete", json=body)


def left(settings: Settings) -> set[str]:
    return {*stored_files(storages["files"])}


def test_a_file_in_parts(ask: Ask, settings: Settings) -> None:
    upload = begin(ask).json()
    openai.types.Upload.model_validate(upload)
    assert (upload["status"], upload["file"]) == ("pending", None)
    assert upload["expires_at"] - upload["created_at"] == 3600
    late = send(ask, upload, CONTENT[5:]).json()
    SentPart.model_validate(late)
    lost = send(ask, upload, CONTENT[:5]).json()
    early = send(ask, upload, CONTENT[:5]).json()
    assert lost["id"] != early["id"], "its answer was lost, so it is sent again"
    md5 = hashlib.md5(CONTENT).hexdigest()
    ended = complete(ask, upload, early, late, md5=md5.upper()).json()
    openai.types.Upload.model_validate(ended)
    file = ended["file"]
    assert (ended["status"], file["bytes"], file["purpose"]) == ("completed", 14, "batch")
    assert ask("GET", f"files/{file['id']}/content").content == CONTENT
    assert complete(ask, upload, early, late).json() == ended, "who heard nothing may ask again"
    assert left(settings) == {file["id"]} and not UploadPart.objects.exists()
    gone = send(ask, upload, b"x")
    assert (gone.status_code, gone.json()["error"]["code"]) == (409, "upload_ended")
    assert ask("POST", f"uploads/{upload['id']}/cancel").status_code == 409


def test_a_cancelled_upload_leaves_no_file(ask: Ask, settings: Settings) -> None:
    upload = begin(ask).json()
    part = send(ask, upload, CONTENT).json()
    for _ in range(2):
        assert ask("POST", f"uploads/{upload['id']}/cancel").json()["status"] == "cancelled"
    assert complete(ask, upload, part).status_code == 409
    assert not left(settings)


def test_an_expired_upload_leaves_no_file(ask: Ask, tenant: Tenant, settings: Settings) -> None:
    upload = begin(ask).json()
    part = send(ask, upload, CONTENT).json()
    Upload.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert complete(ask, upload, part).status_code == 409
    assert Storage.of(tenant).stored_bytes == 0
    jobs.clean_files(0)
    assert Upload.objects.get().status == "expired" and not left(settings)


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"bytes": 0}, "bytes"),
        ({"bytes": 1 << 40}, "bytes"),
        ({"filename": ""}, "filename"),
        ({"filename": "a\0"}, "filename"),
        ({"purpose": "batch_output"}, "purpose"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, "expires_after.seconds"),
        ({"colour": "red"}, None),
    ],
    ids=str,
)
def test_what_is_not_begun(ask: Ask, changed: dict[str, Any], param: str | None) -> None:
    answer = begin(ask, **changed)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_parts_that_are_not_the_file_are_refused(ask: Ask, settings: Settings) -> None:
    upload, other = begin(ask).json(), begin(ask).json()
    whole = send(ask, upload, CONTENT).json()
    foreign = send(ask, other, CONTENT).json()
    for parts, more in (([], {}), ([whole, whole], {}), ([foreign], {}), ([whole], {"md5": "0"})):
        assert complete(ask, upload, *parts, **more).status_code == 400
    assert left(settings) == {whole["id"], foreign["id"]}
    assert complete(ask, upload, whole).status_code == 200


def test_parts_are_bounded(ask: Ask, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = begin(ask).json()
    assert send(ask, upload, CONTENT + b"x").status_code == 400
    for expected in (200, 200, 400):
        assert send(ask, upload, CONTENT).status_code == expected
    assert len(left(settings)) == 2
    other = begin(ask).json()
    assert ask("POST", f"uploads/{other['id']}/parts", files={}).status_code == 400
    empty = send(ask, other, b"")
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "data")
    monkeypatch.setattr(uploads, "MAX_PARTS", 1)
    assert [send(ask, other, b"x").status_code for _ in range(2)] == [200, 400]


def test_announced_bytes_count_towards_the_storage_limit(
    ask: Ask, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant.max_stored_bytes = 100
    tenant.save()
    first = begin(ask, 60).json()
    assert begin(ask, 60).status_code == 403
    assert Storage.of(tenant).stored_bytes == 60
    ask("POST", f"uploads/{first['id']}/cancel")
    assert begin(ask, 60).status_code == 200
    monkeypatch.setattr(uploads, "AT_ONCE", 1)
    refused = begin(ask, 1)
    assert refused.status_code == 429 and refused.headers["retry-after"]


def test_another_tenants_upload_is_not_found(ask: Ask, tenant: Tenant) -> None:
    upload = begin(ask).json()
    part = send(ask, upload, CONTENT).json()
    _, stranger = make_key(make_tenant())
    body = {"part_ids": [part["id"]]}
    path = f"uploads/{upload['id']}"
    assert send(ask, upload, b"x", secret=stranger).status_code == 404
    assert ask("POST", f"{path}/complete", json=body, secret=stranger).status_code == 404
    assert ask("POST", f"{path}/cancel", secret=stranger).status_code == 404
    assert ask("GET", f"files/{part['id']}/content").status_code == 404, "a part is no file"
    for scope in ("usage:read", "adapters:write", "admin"):
        _, other = make_key(tenant, scope)
        assert send(ask, upload, b"x", secret=other).status_code == 403
        assert ask("POST", f"{path}/cancel", secret=other).status_code == 403
    assert Upload.objects.get().status == "pending"
