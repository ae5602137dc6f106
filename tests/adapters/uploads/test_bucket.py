"""Machines that share nothing but a bucket of S3 (and PostgreSQL): each has its own folder for
temporary files."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import boto3
import pytest
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import TemporaryUploadedFile
from django.test import Client
from pytest_django import Settings

from inference.content import CONFIG, WEIGHTS
from tenants.adapters.jobs import UPLOADS
from tenants.adapters.storage import open_file
from tenants.files import blobs, keeping, uploads
from tenants.models import AdapterVersion, Purpose, StoredFile, Tenant, Upload
from tests.adapters.uploads.test_uploads import CONTENT, TAR, Tus
from tests.adapters.uploads.uploading import KEY, sound, upload
from tests.adapters.working import run_worker
from tests.tenants.making import make_key, make_tenant

BUCKET = "acme"
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
Machine = Callable[[], None]
MOTO = """
import sys
from moto.server import ThreadedMotoServer
moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
moto.start()
print("http://{}:{}".format(*moto.get_host_and_port()), flush=True)
sys.stdin.read()
moto.stop()
"""
"""In a process of its own: where Flask is imported, vLLM does not start, because it looks at every
attribute of every module."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", MOTO], stdin=pipe, stdout=pipe, text=True) as moto:
        assert moto.stdin is not None and moto.stdout is not None
        yield moto.stdout.readline().strip()
        moto.stdin.close()


@pytest.fixture
def contents(server: str, settings: Settings) -> Callable[[], list[str]]:
    """Stores everything in a new bucket; returns the names of its objects."""
    s3 = boto3.resource("s3", endpoint_url=server, **KEYS)
    bucket = s3.create_bucket(Bucket=BUCKET)
    bucket.objects.all().delete()
    options = {"bucket_name": BUCKET, "endpoint_url": server, "file_overwrite": True}
    options |= {"access_key": "key", "secret_key": "secret", "region_name": "us-east-1"}
    settings.STORAGES = settings.STORAGES | {
        place: {
            "BACKEND": "storages.backends.s3.S3Storage",
            "OPTIONS": options | {"location": place},
        }
        for place in ("adapters", "files", "uploads")
    }
    settings.UPLOAD_WAIT_S = 0
    return lambda: sorted(one.key for one in bucket.objects.all())


@pytest.fixture
def another(settings: Settings, tmp_path: Path) -> Machine:
    """Go on, on a machine that has not been used yet."""
    numbers = itertools.count()

    def go_on() -> None:
        folder = tmp_path / f"machine-{next(numbers)}"
        folder.mkdir()
        settings.FILE_UPLOAD_TEMP_DIR = str(folder)

    go_on()
    return go_on


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return make_tenant("acme")


def in_a_folder(another: Machine) -> dict[str, bytes]:
    """The files of the only version, as another machine reads them."""
    another()
    version = AdapterVersion.objects.get()
    found = {}
    for name in (CONFIG, WEIGHTS):
        with open_file(version.folder, name) as file:
            found[name] = file.read()
    return found


@pytest.mark.django_db(transaction=True)
def test_a_bucket_that_is_away(
    tenant: Tenant, server: str, contents: Callable[[], list[str]], client: Client
) -> None:
    boto3.resource("s3", endpoint_url=server, **KEYS).Bucket(BUCKET).delete()
    upload = Tus(make_key(tenant, "adapters:write")[1])
    url = upload.begin()
    refused = upload.append(url, 0, TAR)
    assert refused.status_code == 503
    assert "storage of files is unavailable" in refused.json()["detail"]
    key = {"Authorization": f"Bearer {make_key(tenant, 'inference')[1]}"}
    body = {"file": ContentFile(b"{}", "x.jsonl"), "purpose": "batch"}
    answer = client.post("/v1/files", body, headers=key)
    assert answer.status_code == 503 and answer["Retry-After"]
    assert answer.json()["error"]["message"] == "The storage of files is unavailable."
    boto3.resource("s3", endpoint_url=server, **KEYS).create_bucket(Bucket=BUCKET)
    assert upload.append(url, upload.offset(url), TAR).status_code in (202, 204)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("base_model")
def test_an_upload_in_parts(
    tenant: Tenant, contents: Callable[[], list[str]], another: Machine
) -> None:
    client = Tus(make_key(tenant, "adapters:write")[1])
    url = client.begin()
    for start in range(0, len(TAR), 5000):
        another()
        assert client.offset(url) == start
        assert client.append(url, start, TAR[start : start + 5000]).status_code in (202, 204)
    another()
    run_worker(UPLOADS)
    assert in_a_folder(another) == dict(CONTENT)
    assert {name.split("/")[0] for name in contents()} == {"adapters"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.urls("tests.adapters.uploads.uploading")
@pytest.mark.usefixtures("base_model", "tenant")
def test_an_upload_in_one_request(contents: Callable[[], list[str]], another: Machine) -> None:
    assert upload(sound(), headers=KEY)[0] == 202
    another()
    run_worker(UPLOADS)
    assert in_a_folder(another) == dict(CONTENT)
    assert {name.split("/")[0] for name in contents()} == {"adapters"}


@contextmanager
def received(data: bytes) -> Iterator[TemporaryUploadedFile]:
    with TemporaryUploadedFile("a.jsonl", "text/plain", len(data), None) as file:
        cast(IO[bytes], file.file).write(data)
        yield file


@pytest.mark.django_db(transaction=True)
def test_files(tenant: Tenant, contents: Callable[[], list[str]], another: Machine) -> None:
    file = StoredFile(tenant=tenant, purpose=Purpose.EVALS, filename="a.jsonl", size_bytes=8)
    with received(b"one\ntwo\n") as sent:
        keeping.keep(file, sent)
    another()
    with blobs.open(file.pk) as opened:
        assert [*opened] == [b"one\n", b"two\n"]
    keeping.delete(tenant, file.pk)
    assert contents() == []


@pytest.mark.django_db(transaction=True)
def test_files_in_parts(
    tenant: Tenant, contents: Callable[[], list[str]], another: Machine
) -> None:
    upload = Upload(tenant=tenant, purpose=Purpose.EVALS, filename="a.jsonl", size_bytes=8)
    uploads.begin(upload)
    parts = []
    for data in (b"two\n", b"one\n"):
        another()
        with received(data) as sent:
            parts.append(uploads.add(tenant, upload.pk, sent).pk)
    another()
    ended = uploads.complete(tenant, upload.pk, parts[::-1], None)
    assert contents() == [f"files/{ended.file_id}"]
    another()
    with blobs.open(str(ended.file_id)) as opened:
        assert opened.read() == b"one\ntwo\n"
