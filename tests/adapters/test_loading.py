"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`: what training loops send to vLLM."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest
from asgiref.sync import async_to_sync
from django.core.files.storage import InMemoryStorage
from django.db import connection
from django.utils import timezone
from procrastinate.contrib.django.models import ProcrastinateJob
from pytest_django import Settings

from inference.content import CONFIG, WEIGHTS
from tenants.adapters import jobs, short_lived
from tenants.directory.reader import READY_VERSIONS
from tenants.models import (
    LIVE,
    Adapter,
    AdapterVersion,
    Alias,
    AuditEntry,
    BaseModel,
    Notification,
    Scope,
    State,
    StoredFile,
    Target,
    Tenant,
    UploadSession,
)
from tests.adapters.checks.builder import config_bytes, lora
from tests.adapters.checks.test_archives import make_zip
from tests.adapters.checks.test_checks import BAD_WEIGHTS
from tests.adapters.uploads.uploading import files, sound, upload
from tests.adapters.working import run_worker
from tests.batches.conftest import asked
from tests.storing import stored_files
from tests.tenants.making import make_key, make_tenant, make_version

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("worker", "base_model", "object_storage"),
]
Key = str


@pytest.fixture
def key(tenant: Tenant) -> Key:
    return make_key(tenant, Scope.WRITE_ADAPTERS, Scope.INFERENCE)[1]


def post(key: Key, path: str, **options: Any) -> httpx.Response:
    answer: httpx.Response = async_to_sync(asked)("POST", path, key, **options)
    return answer


def stored(key: Key, data: bytes, name: str = "step.zip", purpose: str = "user_data") -> str:
    """The id of a new file."""
    made = post(key, "files", data={"purpose": purpose}, files={"file": (name, data)})
    assert made.status_code == 200, made.text
    id: str = made.json()["id"]
    return id


def zipped(**changes: Any) -> bytes:
    """An archive of an adapter's folder."""
    return make_zip([(CONFIG, config_bytes(**changes)), (WEIGHTS, lora().bytes())])


def load(key: Key, path: str, *, name: str = "policy", **fields: Any) -> httpx.Response:
    return post(key, "load_lora_adapter", json={"lora_name": name, "lora_path": path} | fields)


def unload(key: Key, name: str = "policy") -> httpx.Response:
    return post(key, "unload_lora_adapter", json={"lora_name": name})


def message(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    found: str = answer.json()["error"]["message"]
    return found


def live(name: str = "policy") -> AdapterVersion:
    return Alias.objects.select_related("version").get(adapter__name=name, name=LIVE).version


# --- A loop --------------------------------------------------------------------------------------


def test_each_step_replaces_what_the_name_answers_with(key: Key, tenant: Tenant) -> None:
    seen = []
    for step in range(3):
        # What SkyRL and prime-rl send; vLLM 0.32 has `load_inplace`.
        body: dict[str, Any] = {"load_inplace": True} if step else {}
        answer = load(key, stored(key, zipped(lora_alpha=step + 1)), **body)
        assert (answer.status_code, answer.text) == (
            200,
            "Success: LoRA adapter 'policy' added successfully.",
        )
        version = live()
        assert answer.headers["x-lorikeet-adapter"] == f"policy@{version.digest}"
        assert (version.state, version.number) == (State.READY, step + 1)
        seen.append(version.digest)
    assert len(set(seen)) == 3
    answer = unload(key)
    assert (answer.status_code, answer.text) == (
        200,
        "Success: LoRA adapter 'policy' removed successfully.",
    )
    assert not Adapter.objects.exists() and not AdapterVersion.objects.exists()
    changed = AuditEntry.objects.filter(tenant=tenant, kind__in=["adapter", "version", "alias"])
    assert {one.actor_kind for one in changed} == {"key"}
    assert changed.filter(kind="adapter", action="deleted").exists()
    versions = changed.filter(kind="version").values_list("action", flat=True)
    assert list(versions) == ["created"] * 3, "the alias says the rest"


def test_it_is_not_probed_and_nobody_is_notified(key: Key, tenant: Tenant, gateway: Any) -> None:
    assert load(key, stored(key, zipped())).status_code == 200
    run_worker()
    assert not gateway.asked
    assert not ProcrastinateJob.objects.filter(task_name="judge_version").exists()
    assert not Notification.objects.exists() and not Target.objects.exists()
    assert live().report["tensors"] == 8, "the static checks ran"


def test_a_form_has_the_folder(key: Key) -> None:
    answer = post(key, "load_lora_adapter", data={"lora_name": "policy"}, files=sound())
    assert answer.status_code == 200, answer.text
    data = {"lora_name": "policy", "load_inplace": "true", "lora_path": "/tmp/policy"}
    sent = files(("step.zip", zipped(lora_alpha=3)))
    assert post(key, "load_lora_adapter", data=data, files=sent).status_code == 200
    assert live().number == 2


def test_the_same_content_again_is_the_same_version(key: Key) -> None:
    id = stored(key, zipped())
    assert load(key, id).status_code == 200
    AdapterVersion.objects.update(expires_at=timezone.now() + timedelta(seconds=5))
    assert load(key, id, load_inplace=True).status_code == 200
    assert live().number == 1
    soon = timezone.now() + timedelta(minutes=30)
    assert live().expires_at > soon  # type: ignore[operator]


def test_a_loop_may_go_back_to_an_earlier_step(key: Key) -> None:
    first = stored(key, zipped())
    load(key, first)
    load(key, stored(key, zipped(lora_alpha=2)), load_inplace=True)
    load(key, first, load_inplace=True)
    assert live().number == 1


# --- Refused -------------------------------------------------------------------------------------


def test_refusals_of_vllm(key: Key) -> None:
    assert message(load(key, ""), 400) == "Both 'lora_name' and 'lora_path' must be provided."
    assert message(load(key, "x", name=""), 400).startswith("Both 'lora_name'")
    assert "conflicts with a served base model" in message(load(key, "x", name="tiny"), 400)
    assert message(unload(key), 404) == "The lora adapter 'policy' cannot be found."
    assert message(unload(key, ""), 400).startswith("'lora_name' needs to be provided")
    load(key, stored(key, zipped()))
    again = load(key, stored(key, zipped()))
    assert message(again, 400) == (
        "The lora adapter 'policy' has already been loaded. If you want to load the adapter in "
        "place, set 'load_inplace' to True."
    )


@pytest.mark.parametrize(
    "path",
    ["/tmp/policy", "../../etc", "file:///etc/passwd", "acme/policy", "s3://bucket/policy",
     "file-000000000000000000000000", "file-0\0"],
)  # fmt: skip
def test_no_path_of_the_server_is_read(key: Key, path: str) -> None:
    said = message(load(key, path), 400)
    assert ("/v1/files" in said and "multipart/form-data" in said) or "null character" in said
    assert not UploadSession.objects.exists()


def test_a_file_of_another_purpose_or_tenant(key: Key) -> None:
    assert "user_data" in message(load(key, stored(key, zipped(), purpose="batch")), 400)
    stranger = make_key(make_tenant("globex"), Scope.WRITE_ADAPTERS, Scope.INFERENCE)[1]
    assert "user_data" in message(load(stranger, stored(key, zipped())), 400)
    load(key, stored(key, zipped()))
    assert message(unload(stranger), 404)
    assert Adapter.objects.get().short_lived


def test_a_file_that_is_no_archive(key: Key) -> None:
    assert ".zip" in message(load(key, stored(key, b"x", "step.safetensors")), 400)
    assert "archive_invalid" in message(load(key, stored(key, b"not a zip")), 400)


def test_a_bad_adapter_is_told_why_and_leaves_nothing(
    key: Key, object_storage: InMemoryStorage
) -> None:
    bad = make_zip([(CONFIG, config_bytes()), (WEIGHTS, BAD_WEIGHTS["NaN first"][0])])
    assert "finite" in message(load(key, stored(key, bad)), 400)
    assert not Adapter.objects.exists() and not AdapterVersion.objects.exists()
    run_worker("default")
    assert stored_files(object_storage) == []


def test_a_bad_step_leaves_the_one_before(key: Key) -> None:
    load(key, stored(key, zipped()))
    bad = make_zip([(CONFIG, config_bytes()), (WEIGHTS, BAD_WEIGHTS["NaN first"][0])])
    assert message(load(key, stored(key, bad), load_inplace=True), 400)
    assert live().number == 1


def test_an_ordinary_adapter_is_not_replaced(key: Key, tenant: Tenant, base_model: Any) -> None:
    make_version(Adapter.objects.create(tenant=tenant, name="policy", base_model=base_model))
    for inplace in (False, True):
        refused = load(key, stored(key, zipped()), load_inplace=inplace)
        assert "another name" in message(refused, 400)
    assert message(unload(key), 404)


@pytest.mark.urls("gateway.urls")
def test_an_upload_does_not_join_a_loaded_adapter(key: Key) -> None:
    load(key, stored(key, zipped()), name="pirate")
    headers = {"Authorization": f"Bearer {key}"}
    status, refused = upload(sound(lora_alpha=3), headers=headers)
    assert (status, refused["code"]) == (400, "name_invalid")
    assert "Unload it first" in refused["detail"]


@pytest.mark.parametrize("scope", [Scope.INFERENCE, Scope.READ_USAGE])
def test_who_may_load(tenant: Tenant, scope: str) -> None:
    weak = make_key(tenant, scope)[1]
    assert load(weak, "x").status_code == 403 and unload(weak).status_code == 403
    sent = post(weak, "load_lora_adapter", data={"lora_name": "policy"}, files=sound())
    assert sent.status_code == 403
    assert load("", "x").status_code == 401


def test_sizes_of_bodies(key: Key, settings: Settings) -> None:
    assert load(key, "x" * (65 << 10)).status_code == 413
    id = stored(key, zipped())
    settings.MAX_ADAPTER_BYTES = 100
    assert load(key, id).status_code == 413
    sent = post(key, "load_lora_adapter", data={"lora_name": "policy"}, files=sound())
    assert sent.status_code == 413


@pytest.mark.parametrize("body", [b"[]", b"{", b"[" * 20_000, b'{"lora_name": 5}'])
def test_bodies_that_are_no_request(key: Key, body: bytes) -> None:
    assert post(key, "load_lora_adapter", content=body).status_code == 400
    assert post(key, "unload_lora_adapter", content=body).status_code == 400


# --- Bounds --------------------------------------------------------------------------------------


def test_the_quota_of_versions_does_not_count_them(key: Key, settings: Settings) -> None:
    settings.TENANT_VERSIONS = 1
    for step in range(3):
        sent = stored(key, zipped(lora_alpha=step + 1))
        assert load(key, sent, load_inplace=True).status_code == 200
    id = stored(key, zipped(lora_alpha=9))
    settings.TENANT_STORED_BYTES = 5000
    assert "storage is full" in message(load(key, id, load_inplace=True), 403)


def test_how_many_a_tenant_may_have(key: Key, settings: Settings) -> None:
    settings.TENANT_LOADED_ADAPTERS = 1
    id = stored(key, zipped())
    assert load(key, id).status_code == 200
    assert "1 loaded adapters" in message(load(key, id, name="other"), 429)
    assert load(key, id, load_inplace=True).status_code == 200
    assert unload(key).status_code == 200
    assert load(key, id, name="other").status_code == 200


def test_how_often_a_tenant_may_load(key: Key, settings: Settings) -> None:
    settings.TENANT_LOADS_PER_MINUTE = 1
    id = stored(key, zipped())
    assert load(key, id).status_code == 200
    assert not UploadSession.objects.lasting().exists(), "they can't be deleted, to load more"
    refused = load(key, id, load_inplace=True)
    assert "in the last minute" in message(refused, 429)
    assert refused.headers["retry-after"] == "60"


# --- Expiry --------------------------------------------------------------------------------------


def expire(**found: Any) -> None:
    AdapterVersion.objects.filter(**found).update(expires_at=timezone.now())
    jobs.remove_short_lived(0)


def test_a_replaced_version_stays_for_requests_under_way(key: Key) -> None:
    load(key, stored(key, zipped()))
    load(key, stored(key, zipped(lora_alpha=2)), load_inplace=True)
    first = AdapterVersion.objects.get(number=1)
    assert first.state == State.READY and first.expires_at is not None
    left = first.expires_at - timezone.now()
    assert timedelta() < left <= timedelta(seconds=short_lived.REPLACED_S)
    expire(number=1)
    assert live().number == 2
    expire(number=2)
    assert not Adapter.objects.exists()


def test_expiry_takes_aliases_and_files(key: Key, object_storage: InMemoryStorage) -> None:
    load(key, stored(key, zipped()))
    Adapter.objects.get().promote(live(), "mine")
    expire()
    run_worker("default")
    assert not Alias.objects.exists() and stored_files(object_storage) == []


def test_other_versions_do_not_expire(tenant: Tenant, base_model: BaseModel) -> None:
    make_version(Adapter.objects.create(tenant=tenant, name="policy", base_model=base_model))
    jobs.remove_short_lived(0)
    assert AdapterVersion.objects.count() == 1


def test_a_killed_worker_is_made_up_for(key: Key) -> None:
    load(key, stored(key, zipped()))
    version = live()
    Alias.objects.all().delete()
    AdapterVersion.objects.update(state=State.VALIDATING)
    jobs.resume()
    run_worker("default")
    assert live() == version


def test_gateways_may_send_it_anywhere(key: Key, tenant: Tenant) -> None:
    """It was tried on no revision, which would keep another version off all of them."""
    load(key, stored(key, zipped()))
    with connection.cursor() as cursor:
        cursor.execute(READY_VERSIONS, [tenant.pk])
        names = [column.name for column in cursor.description]
        (row,) = (dict(zip(names, one, strict=True)) for one in cursor.fetchall())
    assert (row["adapter"], row["aliases"], row["tried"]) == ("policy", [LIVE], None)


def test_the_file_may_go_once_it_is_loaded(key: Key) -> None:
    id = stored(key, zipped())
    load(key, id)
    StoredFile.objects.all().delete()
    assert live().state == State.READY
