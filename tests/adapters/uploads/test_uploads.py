"""Resumable uploads by the tus protocol, through Django's whole handler and a real connection."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from asgiref.sync import async_to_sync
from django.core.asgi import get_asgi_application
from django.core.files.storage import storages
from django.db import OperationalError, connection
from django.db.models import QuerySet
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from inference.content import CONFIG, WEIGHTS, digest_of
from tenants.adapters import jobs
from tenants.adapters.uploads import parts, tus
from tenants.adapters.uploads.guard import BodyGuard
from tenants.adapters.uploads.intake import UploadIntake
from tenants.models import (
    Adapter,
    AdapterVersion,
    AuditEntry,
    State,
    Tenant,
    UploadChunk,
    UploadSession,
)
from tests.adapters.checks.builder import config_bytes, lora
from tests.adapters.checks.test_archives import make_tar, make_zip
from tests.adapters.uploads.test_upload import judging
from tests.adapters.uploads.uploading import sound
from tests.stack.asking import until
from tests.storing import left_of_uploads, make_chunk
from tests.tenants.making import make_key, make_member, make_tenant, make_user

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("worker", "base_model", "object_storage"),
]

CONTENT = [(CONFIG, config_bytes()), (WEIGHTS, lora().bytes())]
TAR = make_tar(CONTENT)
VERSION = {"Tus-Resumable": "1.0.0"}
BYTES = {"Content-Type": "application/offset+octet-stream"}
UPLOADS = "/api/v1/uploads"


class Tus:
    """A tus client with an API key."""

    def __init__(self, secret: str, django: Any = None) -> None:
        self.headers = {"Authorization": f"Bearer {secret}"} | VERSION
        inner: Any = django or get_asgi_application()
        self.application: Any = BodyGuard(UploadIntake(inner))

    def __call__(self, method: str, url: str = UPLOADS, **options: Any) -> httpx.Response:
        """Send a request and return the answer. A header of None is left out."""
        headers = self.headers | options.pop("headers", {})
        options["headers"] = {name: value for name, value in headers.items() if value is not None}

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.application)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                return await client.request(method, url, **options)

        return async_to_sync(send)()

    def begin(self, length: int = len(TAR), **metadata: str) -> str:
        """Create an upload; returns its URL."""
        answer = self.create(length, **metadata)
        assert answer.status_code == 201, answer.text
        return answer.headers["location"]

    def create(self, length: object = len(TAR), **metadata: str) -> httpx.Response:
        metadata = {"adapter": "pirate", "filename": "adapter.tar"} | metadata
        return self(
            "POST", headers={"Upload-Length": str(length), "Upload-Metadata": encoded(**metadata)}
        )

    def append(self, url: str, offset: int, data: Any) -> httpx.Response:
        return self("PATCH", url, content=data, headers=BYTES | {"Upload-Offset": str(offset)})

    def offset(self, url: str) -> int:
        answer = self("HEAD", url)
        assert answer.status_code == 200
        return int(answer.headers["upload-offset"])


def encoded(**metadata: str) -> str:
    pairs = ((key, base64.b64encode(value.encode()).decode()) for key, value in metadata.items())
    return ",".join(f"{key} {value}" for key, value in pairs)


def id_of(url: str) -> UUID:
    return UUID(url.split("?")[0].rsplit("/", 1)[1])


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def client(tenant: Tenant) -> Tus:
    return Tus(make_key(tenant, "adapters:write")[1])


# --- The protocol --------------------------------------------------------------------------------


def test_options_say_what_is_spoken(client: Tus, settings: Settings) -> None:
    settings.MAX_ADAPTER_BYTES = 1000
    answer = client("OPTIONS", headers={"Tus-Resumable": None})
    assert answer.status_code == 204
    assert answer.headers["tus-version"] == "1.0.0"
    assert answer.headers["tus-extension"] == "creation,expiration,termination"
    assert answer.headers["tus-max-size"] == str(1000 + tus.ARCHIVE_BYTES)


def test_an_upload_in_two_parts(storage: Any, client: Tus, settings: Settings) -> None:
    url = client.begin()
    head = client("HEAD", url)
    assert head.headers["upload-offset"] == "0"
    assert head.headers["upload-length"] == str(len(TAR))
    assert head.headers["cache-control"] == "no-store"
    assert head.headers["upload-metadata"] == encoded(adapter="pirate", filename="adapter.tar")
    first = client.append(url, 0, TAR[:3000])
    assert (first.status_code, first.headers["upload-offset"]) == (204, "3000")
    assert first.headers["upload-expires"].endswith("GMT")
    assert client.offset(url) == 3000
    assert not AdapterVersion.objects.exists()
    last = client.append(url, 3000, TAR[3000:])
    assert (last.status_code, last.headers["upload-offset"]) == (204, str(len(TAR)))
    assert {answer.headers["tus-resumable"] for answer in (head, first, last)} == {"1.0.0"}
    told = client("GET", url).json()
    assert (told["state"], told["offset"], told["known"]) == ("complete", len(TAR), False)
    assert (told["version"]["number"], told["version"]["state"]) == (1, "validating")
    assert client.offset(url) == len(TAR)
    until(lambda: left_of_uploads(settings) == [])
    assert judging().count() == 1


def test_methods_in_a_header(client: Tus) -> None:
    """For clients behind proxies that let only GET and POST through."""
    url = client.begin()
    headers = BYTES | {"Upload-Offset": "0", "X-HTTP-Method-Override": "PATCH"}
    assert client("POST", url, content=TAR, headers=headers).status_code == 204
    assert client("GET", url).json()["state"] == "complete"


@pytest.mark.parametrize("method", ["POST", "HEAD", "PATCH", "DELETE"])
@pytest.mark.parametrize("version", [None, "0.2.2"])
def test_another_version_is_not_spoken(client: Tus, method: str, version: str | None) -> None:
    url = UPLOADS if method == "POST" else client.begin()
    answer = client(method, url, content=TAR, headers={"Tus-Resumable": version})
    assert (answer.status_code, answer.headers["tus-version"]) == (412, "1.0.0")
    assert not Adapter.objects.exists()


@pytest.mark.parametrize(
    ("length", "status", "words"),
    [
        ("", 400, "Upload-Length"),
        ("-1", 400, "Upload-Length is '-1'"),
        ("1e3", 400, "'1e3'"),
        ("9" * 30, 400, "number of bytes"),
        ("\u0663", 400, "number of bytes"),
        ("0", 400, "at least 1 byte"),
        (1000 + tus.ARCHIVE_BYTES + 1, 413, "66537 bytes, above this server's limit of 66536"),
    ],
)
def test_lengths_that_cannot_be(
    client: Tus, settings: Settings, length: str, status: int, words: str
) -> None:
    settings.MAX_ADAPTER_BYTES = 1000
    metadata = encoded(adapter="pirate", filename="a.tar")
    headers = {"Upload-Length": str(length).encode(), "Upload-Metadata": metadata}
    answer = client("POST", headers=headers)
    assert answer.status_code == status
    assert words in answer.json()["detail"]
    assert not UploadSession.objects.exists()
    until(lambda: left_of_uploads(settings) == [])


@pytest.mark.parametrize(
    ("header", "code", "words"),
    [
        (None, "tus_header_invalid", "filename is missing"),
        (encoded(filename="a.tar"), "name_invalid", ""),
        (encoded(adapter="Not-A-Name", filename="a.tar"), "name_invalid", "Lower-case"),
        (encoded(adapter="tiny", filename="a.tar"), "name_invalid", "base model already has"),
        (
            encoded(adapter="pirate", filename="a.bin"),
            "tus_header_invalid",
            ".zip, .tar, .tar.gz or .tgz",
        ),
        (encoded(adapter="pirate", filename="a.tar", base_model="none"), "base_model_unknown", ""),
        ("adapter !!!,filename YS50YXI=", "tus_header_invalid", "Base64"),
        ("adapter /w==", "tus_header_invalid", "UTF-8"),
        ("adapter AA==", "tus_header_invalid", "null character"),
        ("a YQ==,a YQ==", "tus_header_invalid", "occurs once"),
        (", ,", "tus_header_invalid", "pairs"),
        ("a " + "A" * 5000, "tus_header_invalid", "at most 4096"),
    ],
)
def test_metadata_that_cannot_be(client: Tus, header: str | None, code: str, words: str) -> None:
    answer = client("POST", headers={"Upload-Length": "10", "Upload-Metadata": header})
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert words in answer.json()["detail"]
    assert not UploadSession.objects.exists()


def test_metadata_that_is_not_ours_is_given_back(client: Tus) -> None:
    url = client.begin(filetype="application/x-tar", flag="")
    assert "filetype" in client("HEAD", url).headers["upload-metadata"]


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": "application/octet-stream"}, 415, "content_type_unsupported"),
        ({"Upload-Offset": None}, 400, "tus_header_invalid"),
        ({"Upload-Offset": "+5"}, 400, "tus_header_invalid"),
        ({"Upload-Offset": "5"}, 409, "offset_mismatch"),
        ({"Upload-Offset": "999999999"}, 409, "offset_mismatch"),
    ],
)
def test_patches_that_cannot_be(
    client: Tus, headers: dict[str, str], status: int, code: str
) -> None:
    url = client.begin()
    headers = BYTES | {"Upload-Offset": "0"} | headers
    answer = client("PATCH", url, content=TAR, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["tus-resumable"] == "1.0.0"
    assert client.offset(url) == 0


async def in_chunks(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def test_not_one_byte_beyond_its_length(client: Tus) -> None:
    url = client.begin(2500)
    announced = client.append(url, 0, TAR[:2501])
    assert (announced.status_code, announced.json()["code"]) == (413, "payload_too_large")
    assert "Upload-Length of 2500 bytes" in announced.json()["detail"]
    assert client.offset(url) == 0, "it was announced, so nothing was read"
    assert client.append(url, 0, in_chunks(TAR[:2501])).status_code == 413
    assert client.offset(url) == 2000
    assert client.append(url, 2000, in_chunks(TAR[2000:2400])).status_code == 204
    assert client.append(url, 2400, TAR[2400:2501]).status_code == 413


def test_termination(client: Tus, settings: Settings) -> None:
    url = client.begin()
    client.append(url, 0, TAR[:100])
    assert client("DELETE", url).status_code == 204
    until(lambda: left_of_uploads(settings) == [])
    assert not UploadSession.objects.exists()
    assert client("HEAD", url).status_code == 404
    assert client.append(url, 100, TAR[100:]).status_code == 404


def test_the_list_names_what_is_unfinished(client: Tus) -> None:
    done, open_one = client.begin(), client.begin(adapter="other")
    client.append(done, 0, TAR)
    client.append(open_one, 0, TAR[:10])
    (told,) = client("GET").json()
    assert (told["adapter"], told["offset"], told["state"]) == ("other", 10, "receiving")


# --- Outcomes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "archive"), [("a.tar", TAR), ("a.zip", make_zip(CONTENT))], ids=["tar", "zip"]
)
def test_the_same_version_as_of_a_plain_upload(client: Tus, name: str, archive: bytes) -> None:
    headers = {"Tus-Resumable": None}
    plain = client("POST", "/api/v1/adapters/pirate/versions", files=sound(), headers=headers)
    assert plain.status_code == 201
    url = client.begin(len(archive), filename=name)
    assert client.append(url, 0, archive).status_code == 204
    told = client("GET", url).json()
    assert told["known"] is True
    assert told["version"]["digest"] == plain.json()["digest"]
    assert told["version"]["number"] == 1
    assert AdapterVersion.objects.count() == 1


@pytest.mark.parametrize(
    ("archive", "status", "code"),
    [
        (make_tar([(CONFIG, b"{}")]), 400, "file_missing"),
        (make_tar([(CONFIG, b"{}"), ("adapter_model.bin", b"x")]), 400, "pickle_refused"),
        (make_tar([(CONFIG, b"{}"), (WEIGHTS, b"PK\x03\x04 and so on")]), 400, "pickle_refused"),
        (make_tar([("../" + CONFIG, b"{}")]), 400, "archive_path_refused"),
        (b"no archive at all", 400, "archive_invalid"),
    ],
)
def test_refused_as_a_plain_upload_is(
    client: Tus, settings: Settings, archive: bytes, status: int, code: str
) -> None:
    headers = {"Tus-Resumable": None}
    sent = {"files": ("a.tar", archive)}
    plain = client("POST", "/api/v1/adapters/pirate/versions", files=sent, headers=headers)
    url = client.begin(len(archive))
    answer = client.append(url, 0, archive)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json() == plain.json()
    told = client("GET", url).json()
    assert (told["state"], told["problem"]) == ("refused", answer.json())
    assert client("HEAD", url).status_code == status, "never taken for a success"
    assert client.append(url, len(archive), b"").json() == answer.json()
    until(lambda: left_of_uploads(settings) == [])
    assert not Adapter.objects.exists()


def test_an_archive_that_grows_too_large(client: Tus, settings: Settings) -> None:
    settings.MAX_ADAPTER_BYTES = 2000
    archive = make_zip([(CONFIG, config_bytes()), (WEIGHTS, b"\0" * 3000)])
    answer = client.append(client.begin(len(archive), filename="a.zip"), 0, archive)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


def test_the_audit_log_names_who_completed_the_upload(client: Tus, tenant: Tenant) -> None:
    client.append(client.begin(), 0, TAR)
    entry = AuditEntry.objects.filter(kind="version", action="created").get()
    assert (entry.actor_kind, entry.actor_name, entry.tenant) == ("key", "a key", tenant)


@pytest.mark.parametrize("method", ["HEAD", "PATCH"])
def test_completed_by_whoever_asks_after_a_crash(client: Tus, method: str) -> None:
    """The gateway died after the last byte, before it created the version."""
    url = client.begin()
    make_chunk(UploadSession.objects.get(pk=id_of(url)), TAR)
    assert client("GET", url).json()["state"] == "receiving"
    if method == "HEAD":
        assert client.offset(url) == len(TAR)
    else:
        assert client.append(url, len(TAR), b"").status_code == 204
    assert client("GET", url).json()["version"]["number"] == 1
    assert AuditEntry.objects.get(kind="version", action="created").actor_kind == "key"


def test_a_suspended_tenant(client: Tus, tenant: Tenant) -> None:
    operator = Client()
    operator.force_login(make_user(is_staff=True))
    url = client.begin()
    make_chunk(UploadSession.objects.get(pk=id_of(url)), TAR)
    Tenant.objects.update(status=Tenant.Status.SUSPENDED)
    assert operator.head(url, headers=VERSION).status_code == 403
    Tenant.objects.update(status=Tenant.Status.ACTIVE)
    assert operator.head(url, headers=VERSION).status_code == 200, "it waited"
    assert AdapterVersion.objects.get().state == State.VALIDATING


# --- Ownership and permissions -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "status"),
    [("adapters:write", 201), ("admin", 201), ("inference", 403), ("usage:read", 403)],
)
def test_scopes_of_keys(tenant: Tenant, settings: Settings, scope: str, status: int) -> None:
    client = Tus(make_key(tenant, scope)[1])
    assert client.create().status_code == status
    assert UploadSession.objects.count() == (status == 201)


def test_another_tenants_upload_is_not_found(client: Tus) -> None:
    url = client.begin()
    client.append(url, 0, TAR[:10])
    stranger = Tus(make_key(make_tenant(), "admin", "adapters:write")[1])
    bare = url.split("?")[0]
    for where in (url, bare, f"{UPLOADS}/{uuid4()}"):
        for method in ("GET", "HEAD", "DELETE"):
            assert stranger(method, where).status_code == 404
        assert stranger.append(where, 10, TAR[10:]).status_code == 404
    assert client.offset(url) == 10
    nobody = Tus("")
    assert nobody.append(url, 10, TAR[10:]).status_code == 401
    assert client.offset(url) == 10


@pytest.mark.parametrize(
    ("role", "status"),
    [
        ("owner", 201),
        ("admin", 201),
        ("developer", 201),
        ("operator", 201),
        ("viewer", 403),
        ("outsider", 404),
        ("nobody", 401),
    ],
)
def test_people(tenant: Tenant, role: str, status: int) -> None:
    """With a session and its CSRF token."""
    browser = Client(enforce_csrf_checks=True)
    if role == "operator":
        browser.force_login(make_user(is_staff=True))
    elif role != "nobody":
        home = make_tenant() if role == "outsider" else tenant
        browser.force_login(make_member(home, "owner" if role == "outsider" else role))
    browser.cookies["csrftoken"] = "a" * 32
    headers = VERSION | {"X-CSRFToken": "a" * 32, "Upload-Length": "10"}
    headers["Upload-Metadata"] = encoded(adapter="pirate", filename="a.tar")
    answer = browser.post(f"{UPLOADS}?tenant=acme", headers=headers)
    assert answer.status_code == status
    if status == 201:
        where = answer["Location"]
        assert browser.delete(where, headers=VERSION).status_code == 403, "without the token"
        assert browser.delete(where, headers=headers).status_code == 204


def test_a_key_that_is_revoked_in_between(tenant: Tenant, settings: Settings) -> None:
    key, secret = make_key(tenant, "adapters:write")
    client = Tus(secret)
    url = client.begin()
    client.append(url, 0, TAR[:10])
    key.revoke()
    assert client.append(url, 10, TAR[10:]).status_code == 401
    assert parts.size(id_of(url)) == 10


# --- Quota and time ------------------------------------------------------------------------------


def test_open_uploads_of_a_tenant_are_bounded(client: Tus, settings: Settings) -> None:
    settings.MAX_TENANT_UPLOADS = 2
    first, _ = client.begin(), client.begin()
    refused = client.create()
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_uploads")
    assert "2 unfinished uploads; at most 2 are allowed" in refused.json()["detail"]
    assert 23 * 3600 < int(refused.headers["retry-after"]) <= 24 * 3600
    client.append(first, 0, TAR)
    assert client.create().status_code == 201, "one was finished"
    other = Tus(make_key(make_tenant(), "adapters:write")[1])
    assert other.create().status_code == 201, "another tenant's are its own"


def test_bytes_of_open_uploads_are_bounded(client: Tus, settings: Settings) -> None:
    settings.MAX_TENANT_UPLOAD_BYTES = 1000
    url = client.begin(600)
    refused = client.create(401)
    assert refused.status_code == 429
    assert "600\u00a0bytes; together with this upload's 401\u00a0bytes" in refused.json()["detail"]
    assert "limit of 1,000\u00a0bytes" in refused.json()["detail"]
    assert client.create(400).status_code == 201
    client("DELETE", url)
    assert client.create(600).status_code == 201


def at_once(*calls: Callable[[], httpx.Response]) -> list[httpx.Response]:
    """The answers to requests that are made concurrently."""
    together = threading.Barrier(len(calls))
    answers = []

    def one(call: Callable[[], httpx.Response]) -> None:
        together.wait()
        answers.append(call())
        connection.close()

    threads = [threading.Thread(target=one, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_the_quota_holds_against_requests_at_once(client: Tus, settings: Settings) -> None:
    settings.MAX_TENANT_UPLOADS = 2
    answers = at_once(*[client.create] * 5)
    assert sorted(answer.status_code for answer in answers) == [201, 201, 429, 429, 429]
    assert UploadSession.objects.count() == 2


def test_an_upload_expires(client: Tus, settings: Settings) -> None:
    settings.MAX_TENANT_UPLOADS = 2
    url, other = client.begin(), client.begin()
    client.append(url, 0, TAR[:10])
    past = timezone.now() - timedelta(seconds=1)
    UploadSession.objects.filter(pk=id_of(url)).update(expires_at=past)
    for method in ("GET", "HEAD", "DELETE"):
        assert client(method, url).status_code == 404
    assert client.append(url, 10, TAR[10:]).status_code == 404
    assert client.create().status_code == 201, "it no longer counts"
    assert len(left_of_uploads(settings)) == 1
    jobs.clean_up(0)
    assert left_of_uploads(settings) == []
    assert not UploadSession.objects.filter(pk=id_of(url)).exists()
    assert client.offset(other) == 0


def test_files_without_an_upload_go_too(client: Tus, settings: Settings) -> None:
    """For example the files of a deleted tenant."""
    url = client.begin()
    client.append(url, 0, TAR[:10])
    (chunk,) = UploadChunk.objects.all()
    UploadSession.objects.all().delete()
    jobs.clean_up(0)
    assert left_of_uploads(settings) == [chunk.pk], "younger than any upload that may still come"
    os.utime(storages[parts.PLACE].path(chunk.pk), (0, 0))
    jobs.clean_up(0)
    until(lambda: left_of_uploads(settings) == [])


# --- Interrupted and concurrent uploads ----------------------------------------------------------


def test_many_send_the_same_upload_at_once(client: Tus) -> None:
    """One of them succeeds and writes the whole file; the others get a conflict."""
    url = client.begin()
    answers = at_once(*[lambda: client.append(url, 0, in_chunks(TAR, 100))] * 4)
    assert sorted(answer.status_code for answer in answers) == [204, 409, 409, 409]
    assert client("GET", url).json()["state"] == "complete"
    version = AdapterVersion.objects.get()
    assert version.size_bytes == sum(len(data) for _, data in CONTENT)


@pytest.mark.parametrize(("how", "status"), [("completed", 409), ("given up", 404)])
def test_an_upload_that_ends_before_its_next_bytes(
    client: Tus, tenant: Tenant, how: str, status: int
) -> None:
    """It ends between the permission to append, which names the offset, and the first byte."""
    url = client.begin()
    answer = (
        partial(client.append, url, 0, TAR)
        if how == "completed"
        else partial(client, "DELETE", url)
    )
    django, others = get_asgi_application(), iter([answer])

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await django(scope, receive, send)
        for other in others:
            assert (await asyncio.to_thread(other)).status_code == 204

    late = Tus(make_key(tenant, "adapters:write")[1], slow)
    assert late.append(url, 0, TAR).status_code == status


def test_bytes_that_arrive_while_an_upload_is_given_up(
    client: Tus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever keeps bytes waits for the deletion, instead of making it fail."""
    url = client.begin()
    session = UploadSession.objects.get(pk=id_of(url))
    forget, kept = parts._forget, list[bool]()

    def late() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
        try:
            make_chunk(session, TAR[:10])
        except OperationalError:
            kept.append(False)
        else:
            kept.append(True)
        connection.close()

    def slow(chunks: QuerySet[UploadChunk]) -> list[str]:
        found = forget(chunks)
        thread = threading.Thread(target=late)
        thread.start()
        thread.join()
        return found

    monkeypatch.setattr(parts, "_forget", slow)
    assert client("DELETE", url).status_code == 204
    assert (kept, UploadSession.objects.count()) == ([False], 0)


def test_two_ask_for_the_outcome_at_once(client: Tus) -> None:
    url = client.begin()
    make_chunk(UploadSession.objects.get(pk=id_of(url)), TAR)
    answers = at_once(*[lambda: client("HEAD", url)] * 3)
    assert [answer.status_code for answer in answers] == [200] * 3
    assert AdapterVersion.objects.count() == judging().count() == 1


class Gateway:
    """A process with the application alone, to be killed."""

    PROGRAM = """
import os, socket, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
from django.core.asgi import get_asgi_application
django = get_asgi_application()
import uvicorn
from django.conf import settings
from tenants.adapters.uploads.intake import UploadIntake
settings.DATABASES["default"]["NAME"] = sys.argv[1]
from pathlib import Path
from tests.storing import store_in
store_in(settings, Path(sys.argv[2]))
from tenants.adapters.uploads import parts
parts.CHUNK_BYTES = 1
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(UploadIntake(django), log_config=None, lifespan="off", ws="none")
uvicorn.Server(config).run([listener])
"""

    def __init__(self, settings: Settings) -> None:
        folder = str(Path(settings.FILE_UPLOAD_TEMP_DIR).parent)
        arguments = [connection.settings_dict["NAME"], folder]
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": "platform:."},
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        """Kill the process; it may be dead already."""
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def half_sent(port: int, url: str, client: Tus, sent: bytes) -> socket.socket:
    """A connection with a PATCH of all of TAR, of which only `sent` was sent and has arrived."""
    lines = [
        f"PATCH {url.removeprefix('http://localhost')} HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(TAR)}",
        "Upload-Offset: 0",
        *(f"{name}: {value}" for name, value in (client.headers | BYTES).items()),
    ]
    wire = socket.create_connection(("127.0.0.1", port))
    wire.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + sent)
    until(lambda: parts.size(id_of(url)) == len(sent))
    return wire


@pytest.mark.parametrize("how", ["connection cut", "gateway killed"])
def test_broken_off_half_way(client: Tus, settings: Settings, how: str) -> None:
    """What has arrived is kept, even while its connection still seems open. The rest completes the
    version that a single request would have created."""
    url = client.begin()
    gateway = Gateway(settings)
    try:
        with half_sent(gateway.port, url, client, TAR[:5000]) as wire:
            assert client.offset(url) == 5000
            if how == "gateway killed":
                gateway.kill()
            else:
                wire.close()
            assert client.offset(url) == 5000
            assert client.append(url, 5000, TAR[5000:]).status_code == 204
    finally:
        gateway.kill()
    digests = [hashlib.sha256(data).hexdigest() for _, data in CONTENT]
    assert client("GET", url).json()["version"]["digest"] == digest_of(*digests)


def test_a_reconnecting_client_takes_over_its_upload(client: Tus, settings: Settings) -> None:
    """A connection that died unnoticed blocks no other, and what still arrives on it is ignored."""
    url = client.begin()
    gateway = Gateway(settings)
    try:
        with half_sent(gateway.port, url, client, TAR[:5000]) as wire:
            assert client.append(url, 5000, TAR[5000:7000]).status_code == 204
            wire.sendall(b"?" * (len(TAR) - 5000))
            assert b" 409 " in wire.recv(4096)
    finally:
        gateway.kill()
    assert client.append(url, 7000, TAR[7000:]).status_code == 204
    assert client("GET", url).json()["state"] == "complete"
