"""Storage limits of tenants: an upload is counted before a byte is received, and again once its
size is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import pytest
from asgiref.sync import async_to_sync
from django.core.asgi import get_asgi_application
from django.test import Client
from django.utils import timezone
from pytest_django import Settings
from rest_framework.test import APIClient

from inference.content import CONFIG, WEIGHTS
from inference.errors import InvalidApiKey
from inference.interfaces.directory import Grant
from tenants.adapters.jobs import clean_up
from tenants.adapters.quota import Storage
from tenants.adapters.uploads.guard import BodyGuard
from tenants.adapters.uploads.intake import UploadIntake
from tenants.adapters.uploads.reservations import UploadReservation
from tenants.models import AdapterVersion, ApiKey, State, Tenant, UploadSession, User
from tenants.sizes import size
from tests.adapters.checks.builder import config_bytes, lora
from tests.adapters.checks.test_archives import make_tar, make_zip
from tests.adapters.checks.test_checks import BAD_WEIGHTS
from tests.adapters.conftest import FakeGateway
from tests.adapters.test_guard import Keys
from tests.adapters.uploads.test_uploads import Tus, at_once
from tests.adapters.uploads.uploading import Files, files, sound
from tests.adapters.working import run_worker
from tests.storing import stored_files
from tests.tenants.making import make_key, make_member, make_tenant, make_user

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("worker", "base_model", "object_storage"),
]
VERSIONS = "/api/v1/adapters/pirate/versions"
SIZE = len(config_bytes()) + len(lora().bytes())
"""Bytes of the two files of `sound()`."""


class Directory(Keys):
    """A Directory that knows one key."""

    def __init__(self, key: ApiKey, secret: str) -> None:
        self._secret = secret
        self._grant = Grant(
            key.pk, key.tenant_id, key.tenant.slug, frozenset(key.scopes), None, 1.0, "salt"
        )

    async def authenticate(self, secret: str) -> Grant:
        if secret != self._secret:
            raise InvalidApiKey
        return self._grant


class Door:
    """The whole stack for an upload in one request; records how much of its body is read."""

    def __init__(self, tenant: Tenant) -> None:
        key, self.secret = make_key(tenant, "adapters:write")
        inner: Any = get_asgi_application()
        self._app: Any = BodyGuard(
            UploadReservation(UploadIntake(inner)), Directory(key, self.secret)
        )
        self.read_bytes = 0

    def upload(
        self, sent: Files, path: str = VERSIONS, cookie: str = "", **options: Any
    ) -> httpx.Response:
        who = {"Cookie": cookie} if cookie else {"Authorization": f"Bearer {self.secret}"}
        headers = who | options.pop("headers", {})
        return async_to_sync(self.send)(path, headers, files=sent, **options)

    async def send(self, path: str, headers: dict[str, str], **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._counting)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, headers=headers, **options)

    async def _counting(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted() -> Any:
            message = await receive()
            self.read_bytes += len(message.get("body", b""))
            return message

        await self._app(scope, counted, send)


@pytest.fixture
def door(tenant: Tenant) -> Door:
    return Door(tenant)


def set_quota(tenant: Tenant, **most: int) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(**most)


def outcome(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", answer.json().get("state", ""))


FULL = (403, "storage_quota_exceeded")
STORED = (201, "validating")


# --- In one request ------------------------------------------------------------------------------


def test_what_has_no_room_is_refused_before_it_is_received(door: Door, tenant: Tenant) -> None:
    set_quota(tenant, max_stored_bytes=SIZE - 1)
    answer = door.upload(sound())
    assert outcome(answer) == FULL
    assert door.read_bytes == 0
    assert f"would exceed the limit of {size(SIZE - 1)}" in answer.json()["detail"]
    assert not UploadSession.objects.exists()


def test_what_has_room_is_kept_and_counted(door: Door, tenant: Tenant) -> None:
    set_quota(tenant, max_stored_bytes=3 * SIZE, max_versions=2)
    assert outcome(door.upload(sound())) == STORED
    tenant.refresh_from_db()
    assert Storage.of(tenant) == Storage(SIZE, 3 * SIZE, 1, 2)
    assert not UploadSession.objects.unfinished().exists()


def test_versions_are_counted_too(door: Door, settings: Settings) -> None:
    settings.TENANT_VERSIONS = 1
    assert outcome(door.upload(sound())) == STORED
    answer = door.upload(sound(lora_alpha=1))
    assert outcome(answer) == FULL
    assert "1 versions; at most 1 are allowed" in answer.json()["detail"]


def test_another_tenants_room_is_its_own(door: Door, tenant: Tenant) -> None:
    set_quota(tenant, max_stored_bytes=0)
    assert outcome(door.upload(sound())) == FULL
    assert outcome(Door(make_tenant("umbrella")).upload(sound())) == STORED


async def _slowly(begun: asyncio.Event, go: asyncio.Event) -> AsyncIterator[bytes]:
    yield b"--x\r\n"
    begun.set()
    await go.wait()
    yield b"--x--\r\n"


def test_a_body_that_is_still_coming_has_its_room(door: Door, tenant: Tenant) -> None:
    """Its reservation is released when it ends, however it ends. Without a length, it reserves as
    much as the largest upload."""
    set_quota(tenant, max_stored_bytes=3 << 30)
    headers = {"Authorization": f"Bearer {door.secret}"}
    chunked = headers | {"Content-Type": "multipart/form-data; boundary=x"}

    async def meanwhile() -> tuple[httpx.Response, httpx.Response, httpx.Response]:
        begun, go = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(door.send(VERSIONS, chunked, content=_slowly(begun, go)))
        await begun.wait()
        again = _slowly(asyncio.Event(), asyncio.Event())
        second = await door.send(VERSIONS, chunked, content=again)
        third = await door.send(VERSIONS, headers, files=sound())
        go.set()
        return await first, second, third

    first, second, third = async_to_sync(meanwhile)()
    assert outcome(second) == FULL
    assert outcome(third) == STORED
    assert 400 <= first.status_code < 500, "it has no files"
    assert not UploadSession.objects.unfinished().exists()


@pytest.mark.parametrize("room", [1, 2])
def test_uploads_at_once_never_take_the_same_room(door: Door, tenant: Tenant, room: int) -> None:
    set_quota(tenant, max_versions=room)
    answers = at_once(*[partial(door.upload, sound(lora_alpha=n)) for n in range(1, 6)])
    assert {outcome(answer) for answer in answers} <= {STORED, FULL}
    stored = sum(answer.status_code == 201 for answer in answers)
    assert 1 <= stored == AdapterVersion.objects.count() <= room
    assert not UploadSession.objects.unfinished().exists()


# --- Whose limit ---------------------------------------------------------------------------------


def cookie_of(user: User) -> str:
    """The cookies of a signed-in user."""
    browser = Client()
    browser.force_login(user)
    return f"sessionid={browser.cookies['sessionid'].value}; csrftoken={'a' * 32}"


CSRF = {"X-CSRFToken": "a" * 32, "Referer": "http://localhost/"}


def test_a_member_takes_the_room_of_the_tenant_that_is_named(door: Door, tenant: Tenant) -> None:
    user = make_member(tenant, "developer")
    answer = door.upload(sound(), f"{VERSIONS}?tenant=acme", cookie_of(user), headers=CSRF)
    assert outcome(answer) == STORED
    set_quota(tenant, max_stored_bytes=SIZE)
    for path in (f"{VERSIONS}?tenant=acme", VERSIONS, "/t/acme/adapters/upload"):
        door.read_bytes = 0
        answer = door.upload(sound(lora_alpha=1), path, cookie_of(user), headers=CSRF)
        assert outcome(answer) == FULL, path
        assert door.read_bytes == 0


@pytest.mark.parametrize("role", ["viewer", "outsider"])
def test_a_caller_who_may_not_upload_reserves_nothing_and_sends_no_body(
    door: Door, tenant: Tenant, role: str
) -> None:
    user = make_member(tenant, "viewer") if role == "viewer" else make_user()
    answer = door.upload(sound(), f"{VERSIONS}?tenant=acme", cookie_of(user), headers=CSRF)
    assert answer.status_code == (403 if role == "viewer" else 404)
    assert door.read_bytes == 0
    assert not UploadSession.objects.exists()


# --- In parts ------------------------------------------------------------------------------------


def test_an_upload_in_parts_is_refused_when_it_is_begun(tenant: Tenant) -> None:
    set_quota(tenant, max_stored_bytes=1000)
    client = Tus(make_key(tenant, "adapters:write")[1])
    assert outcome(client.create(1001)) == FULL
    url = client.begin(600)
    assert outcome(client.create(401)) == FULL
    client("DELETE", url)
    assert client.create(1000).status_code == 201


def test_an_archive_that_grows_beyond_the_room_is_refused(tenant: Tenant, door: Door) -> None:
    """It is a zip that compresses well; nothing of it is kept."""
    weights = lora()
    weights.metadata = {"padding": "x" * (1 << 20)}
    archive = make_zip([(CONFIG, config_bytes()), (WEIGHTS, weights.bytes())])
    set_quota(tenant, max_stored_bytes=1 << 20)
    assert outcome(door.upload(files(("a.zip", archive)))) == FULL
    assert not AdapterVersion.objects.exists()
    set_quota(tenant, max_stored_bytes=2 << 20)
    assert outcome(door.upload(files(("a.zip", archive)))) == STORED


# --- What frees storage --------------------------------------------------------------------------


def test_a_rejected_version_keeps_its_report_and_no_byte(
    door: Door, tenant: Tenant, gateway: FakeGateway, object_storage: Any
) -> None:
    bad = files((CONFIG, config_bytes()), (WEIGHTS, BAD_WEIGHTS["NaN first"][0]))
    assert outcome(door.upload(bad)) == STORED
    run_worker()
    version = AdapterVersion.objects.get()
    assert (version.state, version.folder) == (State.REJECTED, "")
    assert version.report["findings"]
    assert stored_files(object_storage) == []
    assert Storage.of(tenant).stored_bytes == 0
    assert Storage.of(tenant).versions == 1, "its report is kept"


def test_an_archived_version_gives_its_room_back_and_needs_it_to_return(
    door: Door, tenant: Tenant, gateway: FakeGateway, object_storage: Any
) -> None:
    assert outcome(door.upload(sound())) == STORED
    run_worker()
    version = AdapterVersion.objects.get()
    version.aliases.all().delete()
    version.archive()
    clean_up(timestamp=0)
    run_worker()
    assert stored_files(object_storage) == []
    assert Storage.of(tenant).stored_bytes == 0
    archive = make_tar([(CONFIG, config_bytes()), (WEIGHTS, lora().bytes())])
    other = make_zip([(CONFIG, config_bytes(lora_alpha=1)), (WEIGHTS, lora().bytes())])
    set_quota(tenant, max_stored_bytes=SIZE + len(archive))
    assert outcome(door.upload(files(("a.zip", other)), "/api/v1/adapters/b/versions")) == STORED
    set_quota(tenant, max_stored_bytes=SIZE + SIZE // 2)
    assert outcome(door.upload(files(("a.tar", archive)))) == FULL


def test_the_room_of_a_killed_process_is_free_after_a_while(tenant: Tenant, door: Door) -> None:
    UploadSession.objects.create(
        tenant=tenant, length_bytes=9000, expires_at=timezone.now() + timedelta(hours=1)
    )
    set_quota(tenant, max_stored_bytes=SIZE + 8000)
    assert outcome(door.upload(sound())) == FULL
    UploadSession.objects.update(expires_at=timezone.now())
    assert outcome(door.upload(sound())) == STORED


# --- Another base model --------------------------------------------------------------------------

OTHER = "meta-llama/Llama-3.1-8B"


def test_an_adapter_of_another_base_model_is_taken_once_that_is_confirmed(door: Door) -> None:
    sent = sound(base_model_name_or_path=OTHER)
    answer = door.upload(sent)
    assert outcome(answer) == (400, "base_model_unconfirmed")
    assert OTHER in answer.json()["detail"] and "tiny" in answer.json()["detail"]
    assert not AdapterVersion.objects.exists()
    assert outcome(door.upload(sent, data={"confirm_base_model": "yes"})) == (400, "field_invalid")
    answer = door.upload(sent, data={"confirm_base_model": "true"})
    assert outcome(answer) == STORED
    assert answer.json()["trained_on"] == OTHER
    again = sound(base_model_name_or_path=OTHER, lora_alpha=3)
    assert outcome(door.upload(again)) == STORED, "the tenant has said so once"
    stranger = Door(make_tenant("umbrella"))
    assert outcome(stranger.upload(sent)) == (400, "base_model_unconfirmed")


def test_confirmed_with_an_upload_in_parts(tenant: Tenant) -> None:
    client = Tus(make_key(tenant, "adapters:write")[1])
    archive = make_tar(
        [(CONFIG, config_bytes(base_model_name_or_path=OTHER)), (WEIGHTS, lora().bytes())]
    )
    refused = client.append(client.begin(len(archive)), 0, archive)
    assert outcome(refused) == (400, "base_model_unconfirmed")
    url = client.begin(len(archive), confirm_base_model="true")
    assert client.append(url, 0, archive).status_code == 204


def test_an_adapter_of_another_base_model_can_be_refused_by_a_setting(
    door: Door, settings: Settings
) -> None:
    settings.OTHER_BASE_MODEL = "refuse"
    sent = sound(base_model_name_or_path=OTHER)
    answer = door.upload(sent, data={"confirm_base_model": "true"})
    assert outcome(answer) == (400, "base_model_differs")


@pytest.mark.parametrize("named", ["org/Tiny", None, 7, ..., "ti\0ny\ud800"])
def test_what_an_adapter_names_is_kept_as_far_as_it_is_a_text(door: Door, named: Any) -> None:
    sent = sound(base_model_name_or_path=named)
    assert outcome(door.upload(sent, data={"confirm_base_model": "true"})) == STORED
    expected = {"org/Tiny": "org/Tiny", "ti\0ny\ud800": "ti\ufffdny?"}.get(named, "")
    assert AdapterVersion.objects.get().trained_on == expected


# --- API -----------------------------------------------------------------------------------------


def test_the_api_shows_it_and_operators_set_it(tenant: Tenant, door: Door) -> None:
    door.upload(sound())
    admin, operator = APIClient(), APIClient()
    admin.force_login(make_member(tenant, "admin"))
    operator.force_login(make_user(is_staff=True))
    shown = admin.get("/api/v1/tenants/acme").json()
    assert shown["storage"] == {
        "stored_bytes": SIZE,
        "max_stored_bytes": 50 << 30,
        "versions": 1,
        "max_versions": 5000,
    }
    change = {"max_stored_bytes": 10, "max_versions": 3}
    assert admin.patch("/api/v1/tenants/acme", change).status_code == 403
    changed = operator.patch("/api/v1/tenants/acme", change).json()
    assert (changed["storage"]["max_stored_bytes"], changed["storage"]["max_versions"]) == (10, 3)
    assert operator.patch("/api/v1/tenants/acme", {"max_versions": -1}).status_code == 400
