"""Uploads: content is stored once, bad ones are refused early, and failed ones leave nothing."""

from __future__ import annotations

import threading
import tracemalloc
from codecs import BOM_UTF8
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.files.storage import FileSystemStorage, InMemoryStorage
from django.db import connection
from procrastinate.contrib.django.models import ProcrastinateJob
from pytest_django import Settings

from inference.content import CONFIG, FILES, WEIGHTS
from tenants.adapters import jobs, store
from tenants.adapters.storage import open_file, storage
from tenants.models import Adapter, AdapterVersion, BaseModel, State, Tenant, User
from tests.adapters.checks.builder import config_bytes, lora
from tests.adapters.checks.test_archives import make_tar, make_zip
from tests.adapters.uploads.uploading import KEY, chunked, files, sound, upload
from tests.adapters.working import run_worker
from tests.stack.asking import until
from tests.storing import left_of_uploads, store_in, stored_files

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.adapters.uploads.uploading"),
    pytest.mark.usefixtures("worker", "tenant", "base_model"),
]


def judging() -> Any:
    """The jobs that judge versions."""
    return ProcrastinateJob.objects.filter(task_name="judge_version")


def assert_nothing_left(storage: Any, settings: Settings) -> None:
    assert not Adapter.objects.exists()
    assert not AdapterVersion.objects.exists()
    assert not judging().exists()
    assert not stored_files(storage)
    until(lambda: not left_of_uploads(settings))  # the worker's last step


# --- Accepted ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        sound(),
        list(reversed(sound())),
        files(("adapter.tar", make_tar())),
        files(("adapter.zip", make_zip())),
    ],
    ids=["two files", "in the other order", "tar", "zip"],
)
def test_new_version(sent: Any, storage: Any, settings: Settings) -> None:
    assert upload(sent) == (201, {"id": AdapterVersion.objects.get().pk, "state": "validating"})
    version = AdapterVersion.objects.select_related("adapter").get()
    assert version.number == 1
    assert version.adapter.name == "pirate"
    assert version.size_bytes == len(config_bytes()) + len(lora().bytes())
    assert stored_files(storage) == [f"{version.folder}/{name}" for name in sorted(FILES)]
    with open_file(version.folder, WEIGHTS) as file:
        assert file.read() == lora().bytes()
    assert judging().get().args == {"version_id": version.pk}
    until(lambda: not left_of_uploads(settings))


def test_body_without_a_length(object_storage: InMemoryStorage) -> None:
    request = httpx.Request("POST", "http://localhost", files=sound())
    headers = KEY | {"Content-Type": request.headers["content-type"]}
    assert upload(content=chunked(request.read()), headers=headers)[0] == 201


def test_a_key_of_another_header(object_storage: InMemoryStorage) -> None:
    key = KEY["Authorization"].removeprefix("Bearer ")
    assert upload(sound(), headers={"x-api-key": key})[0] == 201
    status, refused = upload(sound(), headers=KEY | {"x-api-key": f"{key}b"})
    assert (status, refused["code"]) == (401, "invalid_api_key")


def test_other_content_is_the_next_version(object_storage: InMemoryStorage) -> None:
    upload(sound())
    assert upload(sound(lora_alpha=4))[0] == 201
    assert sorted(AdapterVersion.objects.values_list("number", flat=True)) == [1, 2]


def test_same_content_is_the_same_version(storage: Any) -> None:
    _, first = upload(sound())
    status, second = upload(files(("a.zip", make_zip())))
    assert (status, second["id"]) == (200, first["id"])
    assert len(stored_files(storage)) == 2
    assert judging().count() == 1


def test_same_content_in_another_adapter_is_another_version(object_storage: Any) -> None:
    upload(sound())
    assert upload(sound(), name="sailor")[0] == 201
    assert len(set(AdapterVersion.objects.values_list("folder", flat=True))) == 2


def test_rejected_content_stays_rejected(object_storage: InMemoryStorage) -> None:
    upload(sound())
    AdapterVersion.objects.update(state=State.REJECTED)
    assert upload(sound())[1]["state"] == "rejected"
    assert judging().count() == 1


def test_archived_content_comes_back(storage: Any) -> None:
    upload(sound())
    AdapterVersion.objects.update(state=State.ARCHIVED)
    jobs.remove_unused()
    run_worker("default")
    assert not stored_files(storage)
    assert upload(sound())[0] == 201
    version = AdapterVersion.objects.get()
    assert (version.number, version.state) == (1, State.VALIDATING)
    assert len(stored_files(storage)) == 2


def test_uploads_of_the_same_content_at_once(storage: Any, settings: Settings) -> None:
    """One creates the version, the others are answered with it; a single pair of files is left."""
    together = threading.Barrier(4)
    answers = []

    def one() -> None:
        together.wait()
        answers.append(upload(sound()))
        connection.close()

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    version = AdapterVersion.objects.get()
    assert sorted(status for status, _ in answers) == [200, 200, 200, 201]
    assert {body["id"] for _, body in answers} == {version.pk}
    assert stored_files(storage) == [f"{version.folder}/{name}" for name in sorted(FILES)]
    assert judging().count() == 1
    until(lambda: not left_of_uploads(settings))


def test_another_upload_died_in_the_middle(storage: Any) -> None:
    """Its row exists without its files: the next upload of the same content completes it."""
    upload(sound())
    version = AdapterVersion.objects.get()
    store.remove(version.folder)
    AdapterVersion.objects.update(state=State.UPLOADING)
    assert upload(sound())[0] == 201
    version.refresh_from_db()
    assert version.state == State.VALIDATING
    assert stored_files(storage) == [f"{version.folder}/{name}" for name in sorted(FILES)]


# --- Base models ---------------------------------------------------------------------------------


def test_base_model_is_chosen_where_there_are_several(
    object_storage: InMemoryStorage, settings: Settings
) -> None:
    other = BaseModel.objects.create(name="other", max_model_len=1, max_lora_rank=8, engine="x")
    unknown = sound(base_model_name_or_path="/home/me/model")
    status, body = upload(unknown)
    assert (status, body["code"]) == (400, "base_model_ambiguous")
    assert "other, tiny" in body["detail"]
    assert upload(unknown, data={"base_model": "none"})[1]["code"] == "base_model_unknown"
    assert_nothing_left(object_storage, settings)
    confirmed = {"base_model": "other", "confirm_base_model": "true"}
    assert upload(unknown, data=confirmed)[0] == 201
    assert Adapter.objects.get().base_model == other
    assert upload(sound(), name="second")[0] == 201  # its configuration names `tiny`
    assert Adapter.objects.get(name="second").base_model.name == "tiny"
    for number, path in enumerate(
        ("org/tiny", "/models/tiny/", "/hub/models--org--Tiny/snapshots/c1")
    ):
        name = f"alike-{number}"
        assert upload(sound(base_model_name_or_path=path), name=name)[0] == 201
        assert Adapter.objects.get(name=name).base_model.name == "tiny"
    for broken, told in ((b'{"r": 4,}', "property name"), (b'{"r": Infinity}', "Infinity")):
        status, body = upload(files((CONFIG, broken), (WEIGHTS, lora().bytes())), name="broken")
        assert (status, body["code"]) == (400, "config_not_json")
        assert told in body["detail"]
    status, body = upload(sound(lora_alpha=3), data={"base_model": "tiny"})
    assert (status, body["code"]) == (400, "base_model_mismatch")


def test_what_is_not_the_adapters_is_left_out_and_named() -> None:
    others = files(("README.md", b"---"), ("training_args.bin", b"pickle"), ("._x", b""))
    sent = [*others, *files((CONFIG, BOM_UTF8 + config_bytes())), sound()[1]]
    status, answer = upload(sent)
    version = AdapterVersion.objects.get(pk=answer["id"])
    assert (status, version.left_out) == (201, ["README.md", "training_args.bin", "._x"])
    assert upload(sound()) == (200, answer), "the same adapter without the byte order mark"


# --- Refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "options", "expected"),
    [
        (None, {"json": {}}, (415, "not_multipart")),
        (None, {"content": b"x", "headers": KEY | {"Content-Type": "multipart/form-data"}},
         (415, "not_multipart")),
        (files(("a.txt", b"x")), {}, (400, "file_missing")),
        (files((CONFIG, b"{}")), {}, (400, "file_missing")),
        (files((CONFIG, b"{}"), ("adapter_model.bin", b"")), {}, (400, "pickle_refused")),
        (files((CONFIG, b"{}"), (CONFIG, b"{}")), {}, (400, "file_duplicate")),
        (files((CONFIG, b"{}"), (WEIGHTS, b"PK\x03\x04 and so on")), {}, (400, "pickle_refused")),
        (files(("a.zip", b"PK\x05\x06")), {}, (400, "archive_invalid")),
        (sound(), {"name": "Not-A-Name"}, (400, "name_invalid")),
        (sound(), {"name": "tiny"}, (400, "name_invalid")),
        (sound(), {"name": "x" * 64}, (400, "name_invalid")),
        (files(*[(f"{n}", b"x") for n in range(200)]), {}, (415, "not_multipart")),
    ],
)  # fmt: skip
def test_refused(
    sent: Any, options: dict[str, Any], expected: Any, object_storage: Any, settings: Settings
) -> None:
    status, body = upload(sent, **options)
    assert (status, body["code"]) == expected
    assert_nothing_left(object_storage, settings)


def test_suspended_tenant(tenant: Tenant, object_storage: Any, settings: Settings) -> None:
    tenant.status = Tenant.Status.SUSPENDED
    tenant.save()
    status, body = upload(sound())
    assert (status, body["code"]) == (403, "tenant_suspended")
    assert_nothing_left(object_storage, settings)


@pytest.mark.parametrize("sent", [sound(), files(("a.zip", make_zip()))], ids=["files", "archive"])
def test_too_large_once_parsed(sent: Any, storage: Any, settings: Settings) -> None:
    """It is within the guard's allowance for framing, or small only while packed."""
    settings.MAX_ADAPTER_BYTES = 2000
    status, body = upload(sent)
    assert (status, body["code"]) == (413, "payload_too_large")
    assert "limit of 2\u00a0KB" in body["detail"]
    assert_nothing_left(storage, settings)


def keep_in(kind: type[FileSystemStorage], settings: Settings, folder: Path) -> None:
    """Configure a storage of class `kind` for adapters, in the folder."""
    store_in(settings, folder, adapters=f"{__name__}.{kind.__name__}")


class FullStorage(FileSystemStorage):
    """Stores one file, then reports a full disk while `full` is set."""

    full = True

    def _save(self, name: str, content: Any) -> str:
        if name.endswith(WEIGHTS) and self.full:
            raise OSError(28, "No space left on device")
        return str(super()._save(name, content))  # type: ignore[misc]  # no stub has it


@pytest.mark.parametrize("sent", [sound(), files(("a.zip", make_zip()))], ids=["files", "archive"])
def test_on_a_full_disk_an_upload_waits(
    sent: Any, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is stored twice or lost: a worker retries, as after a crash."""
    keep_in(FullStorage, settings, tmp_path)
    settings.UPLOAD_WAIT_S = 1
    status, body = upload(sent)
    assert status == 202
    jobs_left = ProcrastinateJob.objects.filter(task_name="unpack_upload")
    until(lambda: jobs_left.get().attempts == 1)
    assert not AdapterVersion.objects.exists() and not stored_files(storage())
    assert len(left_of_uploads(settings)) == len(sent)
    monkeypatch.setattr(FullStorage, "full", False)
    jobs.unpack_upload(upload_id=body["id"])
    jobs.unpack_upload(upload_id=body["id"])
    version = AdapterVersion.objects.get()
    assert version.state == State.VALIDATING
    assert stored_files(storage()) == [f"{version.folder}/{name}" for name in sorted(FILES)]
    assert judging().count() == 1
    assert not left_of_uploads(settings)


class RivalStorage(FileSystemStorage):
    """Deletes the adapter while its weights are being stored."""

    def _save(self, name: str, content: Any) -> str:
        if name.endswith(WEIGHTS):
            Adapter.objects.get().retire()
        return str(super()._save(name, content))  # type: ignore[misc]  # no stub has it


def test_an_adapter_that_is_deleted_during_its_upload(settings: Settings, tmp_path: Path) -> None:
    keep_in(RivalStorage, settings, tmp_path)
    status, refusal = upload(sound())
    assert (status, refusal["code"]) == (409, "adapter_deleted")
    assert_nothing_left(storage(), settings)


def test_uploader_is_noted(object_storage: InMemoryStorage) -> None:
    assert User.objects.count() == 0
    upload(sound())
    assert AdapterVersion.objects.get().created_by is None


def large_body(weights_bytes: int) -> tuple[str, AsyncIterator[bytes]]:
    """Content type and body of an upload that is never completely in memory."""

    def part(name: str) -> bytes:
        line = f'--border\r\nContent-Disposition: form-data; name="f"; filename="{name}"\r\n\r\n'
        return line.encode()

    async def body() -> AsyncIterator[bytes]:
        yield part(CONFIG) + config_bytes() + b"\r\n" + part(WEIGHTS)
        for _ in range(0, weights_bytes, 1 << 16):
            yield bytes(1 << 16)
        yield b"\r\n--border--\r\n"

    return "multipart/form-data; boundary=border", body()


def test_memory_of_a_64_mib_upload(settings: Settings, tmp_path: Path) -> None:
    store_in(settings, tmp_path)
    upload(sound(), name="first")  # excludes what the first request imports and caches
    content_type, body = large_body(64 << 20)
    tracemalloc.start()
    try:
        status, _ = upload(content=body, headers=KEY | {"Content-Type": content_type})
        version = AdapterVersion.objects.get(adapter__name="pirate")
        verdict = store.check(version)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status == 201
    assert version.size_bytes > 64 << 20
    assert [finding["code"] for finding in verdict.report["findings"]] == ["header_invalid"]
    assert peak < 10 << 20
