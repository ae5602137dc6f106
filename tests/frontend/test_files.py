"""The page of files, and batches that are created in the console."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from tenants.batch_states import Status
from tenants.files import blobs
from tenants.models import ApiKey, AuditEntry, Batch, Tenant
from tests.frontend.clients import client_of, user_of
from tests.tenants.making import make_batch, make_key, make_tenant

LINE = b'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'


def at(tenant: Tenant, *rest: str) -> str:
    return "/".join(["/t", tenant.slug, *rest])


def upload(name: str = "lines.jsonl", content: bytes = LINE) -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content)


@pytest.fixture
def developer(tenant: Tenant) -> Client:
    return client_of(tenant, "developer")


@pytest.fixture
def own(tenant: Tenant, developer: Client) -> ApiKey:
    """A key that the developer made."""
    return make_key(tenant, created_by=user_of(developer))[0]


def stored(id: str) -> bytes:
    with blobs.open(id) as file:
        return file.read()


def test_a_file_is_uploaded_listed_downloaded_and_deleted(
    tenant: Tenant, developer: Client
) -> None:
    made = developer.post(at(tenant, "files"), {"upload": upload(), "purpose": "batch"})
    assert made.status_code == 302
    file = tenant.files.get()
    assert (file.filename, file.size_bytes, file.purpose) == ("lines.jsonl", len(LINE), "batch")
    assert file.expires_at is not None and stored(file.pk) == LINE
    page = developer.get(at(tenant, "files")).text
    assert "lines.jsonl" in page and f"batches/new?file={file.pk}" in page
    assert "No file matches" in developer.get(at(tenant, "files"), {"q": "other"}).text
    answer = developer.get(at(tenant, "files", file.pk))
    assert answer["Content-Disposition"] == 'attachment; filename="lines.jsonl"'
    assert developer.post(at(tenant, "files", file.pk, "delete")).status_code == 302
    assert not tenant.files.exists()
    actions = (
        AuditEntry.objects.filter(name=file.pk).order_by("pk").values_list("action", flat=True)
    )
    assert [one for one in actions if one.endswith(" file")] == [
        "uploaded file", "downloaded file", "deleted file",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {"purpose": "batch"},
        {"upload": upload(content=b""), "purpose": "batch"},
        {"upload": upload(), "purpose": "batch_output"},
    ],
)
def test_what_is_not_uploaded(tenant: Tenant, developer: Client, given: dict[str, Any]) -> None:
    assert developer.post(at(tenant, "files"), given).status_code == 422
    assert not tenant.files.exists()


def test_storage_that_is_full_is_told_at_the_field(tenant: Tenant, developer: Client) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(max_stored_bytes=1)
    page = developer.post(at(tenant, "files"), {"upload": upload(), "purpose": "evals"})
    assert page.status_code == 422 and "upload" in page.context["form"].errors


def test_a_file_that_a_batch_reads_stays(tenant: Tenant, key: ApiKey, developer: Client) -> None:
    file = make_batch(key).input_file
    page = developer.post(at(tenant, "files", file.pk, "delete"), follow=True)
    assert "is using this file" in page.text and tenant.files.exists()


def test_whose_files_are_seen(tenant: Tenant, key: ApiKey) -> None:
    file = make_batch(key).input_file
    paths = [at(tenant, "files"), at(tenant, "files", file.pk), at(tenant, "batches", "new")]
    for role, status in (("owner", 200), ("operator", 200), ("viewer", 403), ("outsider", 404)):
        client = client_of(tenant, role)
        assert [client.get(path).status_code for path in paths] == [status] * 3
        if status != 200:
            assert client.post(at(tenant, "files", file.pk, "delete")).status_code == status
            assert client.post(at(tenant, "files"), {"upload": upload()}).status_code == status
    other = client_of(make_tenant("other"), "owner")
    assert other.get(f"/t/other/files/{file.pk}").status_code == 404
    assert other.post(f"/t/other/files/{file.pk}/delete").status_code == 404
    checked = Client(enforce_csrf_checks=True)
    checked.force_login(user_of(client_of(tenant, "owner")))
    assert checked.post(at(tenant, "files"), {"upload": upload()}).status_code == 403


@pytest.mark.parametrize("chosen", [True, False])
def test_a_batch_is_created_of_a_file(
    tenant: Tenant, developer: Client, own: ApiKey, chosen: bool
) -> None:
    where, given = at(tenant, "batches", "new"), {"endpoint": "/v1/embeddings", "key": own.pk}
    if chosen:
        developer.post(at(tenant, "files"), {"upload": upload(), "purpose": "batch"})
        file = tenant.files.get().pk
        assert f'value="{file}" selected' in developer.get(where, {"file": file}).text
        made = developer.post(where, given | {"file": file})
    else:
        made = developer.post(where, given | {"upload": upload()})
    batch = Batch.objects.get()
    assert made["Location"] == at(tenant, "batches", batch.pk)
    assert (batch.key, batch.endpoint, batch.operation) == (own, "/v1/embeddings", "embeddings")
    assert batch.status == Status.VALIDATING and batch.seal
    assert stored(batch.input_file_id) == LINE
    assert AuditEntry.objects.filter(action="created batch", name=batch.pk).count() == 1


def test_which_batches_are_refused(
    tenant: Tenant, developer: Client, own: ApiKey, key: ApiKey, settings: Any
) -> None:
    where = at(tenant, "batches", "new")
    file = make_batch(key, status=Status.COMPLETED, ended_at=own.created_at).input_file
    strangers = make_batch(make_key(make_tenant())[0]).input_file
    good = {"endpoint": "/v1/chat/completions", "key": own.pk, "file": file.pk}
    for field, changed in (
        ("file", {"file": ""}),
        ("file", {"upload": upload()}),
        ("file", {"file": strangers.pk}),
        ("file", {"file": "\0"}),
        ("key", {"key": key.pk}),
        ("endpoint", {"endpoint": "/v1/files"}),
    ):
        page = developer.post(where, good | changed)
        assert page.status_code == 422 and field in page.context["form"].errors
    settings.TENANT_BATCHES = 0
    assert "unfinished batches" in developer.post(where, good).text
    assert Batch.objects.filter(tenant=tenant).count() == 1
    assert client_of(tenant, "admin").post(where, good | {"key": key.pk}).status_code == 422
    settings.TENANT_BATCHES = 10
    assert client_of(tenant, "admin").post(where, good | {"key": key.pk}).status_code == 302


def test_without_a_key_there_is_none_to_run_it_with(tenant: Tenant, developer: Client) -> None:
    make_key(tenant, "usage:read", created_by=user_of(developer))
    make_key(tenant, created_by=user_of(developer))[0].revoke()
    page = developer.get(at(tenant, "batches", "new"))
    assert "There is none yet" in page.text and "Create batch</button>" not in page.text
