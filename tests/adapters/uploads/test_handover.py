"""Uploads that have arrived completely, but that no worker has unpacked yet."""

from __future__ import annotations

import pytest
from procrastinate.contrib.django.models import ProcrastinateJob
from pytest_django import Settings

from tenants.adapters import jobs
from tenants.models import Adapter, Tenant, UploadSession
from tests.adapters.uploads.test_uploads import TAR, Tus, id_of
from tests.adapters.uploads.uploading import sound
from tests.adapters.working import unpacking
from tests.stack.asking import until
from tests.storing import left_of_uploads
from tests.tenants.making import make_key, make_tenant

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("no_jobs", "base_model", "object_storage"),
]


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def client(tenant: Tenant, settings: Settings) -> Tus:
    settings.UPLOAD_WAIT_S = 0
    return Tus(make_key(tenant, "adapters:write")[1])


@pytest.mark.parametrize("way", ["in parts", "in one request"])
def test_asked_again_where_a_worker_takes_longer(client: Tus, settings: Settings, way: str) -> None:
    """The answer says that a worker has yet to unpack the upload, and where to ask again."""
    if way == "in parts":
        url = client.begin()
        assert client.append(url, 0, TAR).status_code == 204
    else:
        headers = {"Tus-Resumable": None}
        sent = client("POST", "/api/v1/adapters/pirate/versions", files=sound(), headers=headers)
        assert (sent.status_code, sent.json()["state"]) == (202, "checking")
        url = sent.headers["location"]
    told = client("GET", url).json()
    assert (told["state"], told["offset"], told["version"]) == ("checking", told["length"], None)
    assert [one["id"] for one in client("GET").json()] == [told["id"]]
    assert client.offset(url) == told["length"]
    assert client.append(url, told["length"] - 1, b"!").status_code == 409
    settings.UPLOAD_WAIT_S = 30
    with unpacking():
        assert client.offset(url) == told["length"]
    told = client("GET", url).json()
    assert (told["state"], told["version"]["number"]) == ("complete", 1)
    assert client("GET").json() == []
    until(lambda: left_of_uploads(settings) == [])


def test_an_upload_without_a_job_gets_one(client: Tus, settings: Settings) -> None:
    url = client.begin()
    client.append(url, 0, TAR)
    ProcrastinateJob.objects.all().delete()
    jobs.clean_up(0)
    jobs.clean_up(0)
    assert ProcrastinateJob.objects.get().args == {"upload_id": str(id_of(url))}
    with unpacking():
        until(lambda: UploadSession.objects.get().ended)


def test_an_upload_that_is_given_up_while_it_waits(client: Tus, settings: Settings) -> None:
    url = client.begin()
    client.append(url, 0, TAR)
    assert client("DELETE", url).status_code == 204
    jobs.unpack_upload(upload_id=str(id_of(url)))
    until(lambda: left_of_uploads(settings) == [])
    assert not Adapter.objects.exists()
