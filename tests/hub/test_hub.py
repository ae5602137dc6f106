"""The hub API, called by huggingface_hub's own client and by less well-behaved ones."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.files.storage import InMemoryStorage
from django.utils import timezone
from huggingface_hub import (
    CommitOperationAdd,
    constants,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub.errors import (
    BadRequestError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from pytest_django import Settings

from inference.content import CONFIG, WEIGHTS
from tenants.adapters import jobs
from tenants.adapters.storage import ORIGINALS
from tenants.adapters.uploads import objects
from tenants.models import AdapterVersion, AuditEntry, State, Tenant, UploadSession
from tests.adapters.checks.builder import config_bytes, lora
from tests.adapters.conftest import FakeGateway
from tests.adapters.working import run_worker
from tests.hub.conftest import Hub
from tests.stack.asking import until
from tests.storing import left_of_uploads, stored_files
from tests.tenants.making import make_key, make_tenant

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("worker", "base_model", "object_storage"),
]
FILES = {CONFIG: config_bytes(), WEIGHTS: lora().bytes()}
OID = hashlib.sha256(FILES[WEIGHTS]).hexdigest()
COMMIT = "api/models/acme/pirate/commit/main"
BATCH = "acme/pirate.git/info/lfs/objects/batch"


@pytest.fixture
def by_lfs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the client send the weights by Git LFS and not insist on Xet."""
    settings.HUB_COMMIT_BYTES = 100
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@pytest.fixture
def live(hub: Hub, gateway: FakeGateway) -> AdapterVersion:
    """A pushed version that is ready."""
    push(hub)
    run_worker()
    version = AdapterVersion.objects.get()
    assert version.state == State.READY
    return version


def push(hub: Hub, repo: str = "acme/pirate", files: dict[str, bytes] = FILES) -> Any:
    operations = [CommitOperationAdd(name, data) for name, data in files.items()]
    return hub.api.create_commit(repo, operations, commit_message="Upload model")


def ndjson(*operations: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in operations)


def sent(path: str, data: bytes) -> dict[str, Any]:
    content = base64.b64encode(data).decode()
    return {"key": "file", "value": {"content": content, "path": path, "encoding": "base64"}}


def pointer(oid: str = OID) -> dict[str, Any]:
    return {"key": "lfsFile", "value": {"path": WEIGHTS, "algo": "sha256", "oid": oid, "size": 1}}


def announce(hub: Hub, oid: str = OID, size: int = len(FILES[WEIGHTS])) -> httpx.Response:
    body = {"operation": "upload", "objects": [{"oid": oid, "size": size}]}
    return hub("POST", BATCH, json=body)


def address(answer: httpx.Response) -> str:
    return str(answer.json()["objects"][0]["actions"]["upload"]["href"])


def put(url: str, data: Any = FILES[WEIGHTS]) -> httpx.Response:
    return httpx.put(url, content=data, timeout=60)


# --- Pushing -------------------------------------------------------------------------------------


def test_a_push_is_a_version_that_is_being_validated(
    hub: Hub, settings: Settings, object_storage: InMemoryStorage
) -> None:
    assert hub.api.create_repo("acme/pirate", exist_ok=True).repo_id == "acme/pirate"
    info = push(hub, files=FILES | {"README.md": b"---\ntags: [x]\n---\n", "optimizer.pt": b"P"})
    version = AdapterVersion.objects.get()
    assert (str(version), version.state) == ("acme/pirate@1", State.VALIDATING)
    assert info.oid == version.digest[:40]
    assert info.repo_url.repo_id == "acme/pirate"
    assert [name.rsplit("/")[-1] for name in stored_files(object_storage)] == sorted(FILES)
    until(lambda: left_of_uploads(settings) == [])
    assert AuditEntry.objects.filter(kind="adapter", actor_kind="key").exists()


def test_the_same_files_again_are_the_same_version(hub: Hub) -> None:
    assert push(hub).oid == push(hub).oid
    assert AdapterVersion.objects.count() == 1
    assert hub.api.create_repo("acme/pirate", exist_ok=True).repo_id == "acme/pirate"
    with pytest.raises(HfHubHTTPError, match="already created"):
        hub.api.create_repo("acme/pirate")


def test_a_repository_exists_once_it_is_created(hub: Hub) -> None:
    assert not hub.api.repo_exists("acme/pirate")
    hub.api.create_repo("acme/pirate")
    assert hub.api.repo_exists("acme/pirate") and hub.api.list_repo_files("acme/pirate") == []
    with pytest.raises(HfHubHTTPError, match="already created"):
        hub.api.create_repo("acme/pirate")
    hub.api.delete_repo("acme/pirate")
    assert not hub.api.repo_exists("acme/pirate")
    hub.api.create_repo("acme/pirate")
    push(hub)
    hub.api.delete_repo("acme/pirate")
    assert not hub.api.repo_exists("acme/pirate")
    for number in range(60):
        hub.api.create_repo(f"acme/many-{number}")
    assert hub.api.repo_exists("acme/many-59") and not hub.api.repo_exists("acme/many-9")


def test_a_folder_is_pushed_whole(hub: Hub, tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / WEIGHTS).write_bytes(b"another one")
    hub.api.upload_folder(repo_id="acme/pirate", folder_path=tmp_path)
    assert AdapterVersion.objects.get().size_bytes == sum(map(len, FILES.values()))


@pytest.mark.usefixtures("by_lfs")
@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # httpx2 of huggingface_hub
def test_large_weights_come_before_their_commit(hub: Hub, settings: Settings) -> None:
    version = push(hub).oid
    assert AdapterVersion.objects.get().digest[:40] == version
    until(lambda: left_of_uploads(settings) == [])
    assert not UploadSession.objects.exclude(oid="").exists()


def test_a_client_that_wants_xet_is_told_how_to_go_without(hub: Hub, settings: Settings) -> None:
    settings.HUB_COMMIT_BYTES = 100
    asked = {"files": [{"path": WEIGHTS, "size": 101}, {"path": CONFIG, "size": 101}]}
    told = hub("POST", "api/models/acme/pirate/preupload/main", json=asked).json()["files"]
    assert [one["uploadMode"] for one in told] == ["lfs", "regular"]
    answer = hub("GET", "api/models/acme/pirate/xet-write-token/main")
    assert answer.status_code == 400 and "HF_HUB_DISABLE_XET=1" in answer.json()["error"]


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({CONFIG: FILES[CONFIG], "adapter_model.bin": b"P"}, "can run code"),
        ({CONFIG: FILES[CONFIG], WEIGHTS: b"PK\x03\x04 a torch file"}, "is a pickle"),
        (FILES | {CONFIG: config_bytes(base_model_name_or_path="other/model")}, "other/model"),
    ],
)
def test_a_refused_push_says_why_and_leaves_no_files(
    hub: Hub, files: dict[str, bytes], told: str, settings: Settings,
    object_storage: InMemoryStorage,
) -> None:  # fmt: skip
    with pytest.raises(BadRequestError, match=told):
        push(hub, files=files)
    until(lambda: left_of_uploads(settings) == [])
    assert stored_files(object_storage) == []
    assert not AdapterVersion.objects.exists()


def test_a_bad_adapter_ends_rejected_as_any_upload(hub: Hub, gateway: FakeGateway) -> None:
    push(hub, files=FILES | {WEIGHTS: b"\x10" + bytes(7) + b"{} no safetensors"})
    run_worker()
    version = AdapterVersion.objects.get()
    assert (version.state, version.folder) == (State.REJECTED, "")


def test_a_commit_without_an_adapter_changes_nothing(hub: Hub, gateway: FakeGateway) -> None:
    """Such as `tokenizer.push_to_hub`, before and after the adapter's."""
    readme: dict[str, Any] = {
        "path_or_fileobj": b"# It",
        "path_in_repo": "README.md",
        "repo_id": "acme/pirate",
    }
    assert hub.api.upload_file(**readme).oid == "0" * 40
    push(hub)
    run_worker()
    version = AdapterVersion.objects.get()
    assert hub.api.upload_file(**readme).oid == version.digest[:40]
    assert hub.api.delete_file("README.md", "acme/pirate").oid == version.digest[:40]
    assert AdapterVersion.objects.count() == 1


def test_a_commit_of_one_file_leaves_the_other_as_it_was(
    hub: Hub, gateway: FakeGateway, object_storage: InMemoryStorage
) -> None:
    marked = BOM_UTF8 + FILES[CONFIG]
    push(hub, files=FILES | {CONFIG: marked})
    run_worker()
    weights = lora(dtype="F16").bytes()
    hub.api.upload_file(path_or_fileobj=weights, path_in_repo=WEIGHTS, repo_id="acme/pirate")
    run_worker()
    config = config_bytes(lora_alpha=16)
    hub.api.upload_file(path_or_fileobj=config, path_in_repo=CONFIG, repo_id="acme/pirate")

    def stored(number: int) -> dict[str, bytes]:
        folder = AdapterVersion.objects.get(number=number).folder
        return {name: object_storage.open(f"{folder}/{name}").read() for name in FILES}

    assert stored(2) == FILES | {WEIGHTS: weights}
    assert AdapterVersion.objects.get(number=2).converted.keys() == {CONFIG}, "as it was sent"
    assert stored(3) == {CONFIG: config, WEIGHTS: weights}


@pytest.mark.parametrize("first", [CONFIG, WEIGHTS])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # httpx2 of huggingface_hub
def test_the_files_may_come_one_by_one(
    hub: Hub, gateway: FakeGateway, settings: Settings, monkeypatch: pytest.MonkeyPatch,
    first: str, large: bool,
) -> None:  # fmt: skip
    if large:
        settings.HUB_COMMIT_BYTES = 100
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)

    def send(name: str, data: bytes) -> str:
        told = hub.api.upload_file(path_or_fileobj=data, path_in_repo=name, repo_id="acme/pirate")
        return str(told.oid)

    other = CONFIG if first == WEIGHTS else WEIGHTS
    assert {send(first, FILES[first]) for _ in range(2)} == {"0" * 40}
    assert not AdapterVersion.objects.exists()
    assert UploadSession.objects.unfinished().filter(oid="commit").count() == 1
    oid = send(other, FILES[other])
    version = AdapterVersion.objects.get()
    assert oid == version.digest[:40]
    assert push(hub).oid == oid
    assert not UploadSession.objects.unfinished().exists()
    until(lambda: left_of_uploads(settings) == [])


def test_a_file_whose_other_never_comes_expires(hub: Hub, settings: Settings) -> None:
    push(hub, files={CONFIG: FILES[CONFIG]})
    UploadSession.objects.update(expires_at=timezone.now())
    jobs.remove_expired()
    assert not UploadSession.objects.exists() and left_of_uploads(settings) == []


def test_a_commit_may_follow_the_last_version_or_the_live_one(
    hub: Hub, gateway: FakeGateway
) -> None:
    def follow(parent: str, alpha: int) -> Any:
        files = FILES | {CONFIG: config_bytes(lora_alpha=alpha)}
        operations = [CommitOperationAdd(name, data) for name, data in files.items()]
        return hub.api.create_commit(
            "acme/pirate", operations, commit_message="x", parent_commit=parent
        )

    live = push(hub).oid
    run_worker()
    last = follow(live, 1).oid
    follow(last, 2)
    follow(live, 3)
    with pytest.raises(BadRequestError, match="which is not the last version"):
        follow(last, 4)


def test_what_clients_ask_about_a_repository(hub: Hub, live: AdapterVersion) -> None:
    api, commit = hub.api, live.digest[:40]
    api.auth_check("acme/pirate")
    with pytest.raises(RepositoryNotFoundError):
        api.auth_check("acme/nothing")
    refs = api.list_repo_refs("acme/pirate")
    assert [(one.name, one.target_commit) for one in refs.branches] == [("main", commit)]
    assert [(one.name, one.target_commit) for one in refs.tags] == [("1", commit)]
    (told,) = api.list_repo_commits("acme/pirate")
    assert (told.commit_id, told.title) == (commit, "Version 1")
    (found,) = api.get_paths_info("acme/pirate", [CONFIG, "README.md"])
    assert isinstance(found, RepoFile)
    assert (found.path, found.size) == (CONFIG, len(FILES[CONFIG]))


def test_the_adapters_are_listed_page_by_page(
    hub: Hub, live: AdapterVersion, tenant: Tenant
) -> None:
    for name in ("anchor", "zebra"):
        tenant.adapters.create(name=name, base_model=live.adapter.base_model)
    stranger = make_tenant("stranger")
    stranger.adapters.create(name="theirs", base_model=live.adapter.base_model)
    names = ["acme/anchor", "acme/pirate", "acme/zebra"]
    assert [one.id for one in hub.api.list_models()] == names
    assert [one.id for one in hub.api.list_models(author="acme", search="ira")] == names[1:2]
    assert not [*hub.api.list_models(author="stranger")]
    (shas,) = [{one.id: one.sha for one in hub.api.list_models(limit=3)}]
    assert shas == dict.fromkeys(names) | {"acme/pirate": live.digest[:40]}
    page = hub("GET", "api/models?limit=2")
    assert [one["id"] for one in page.json()] == names[:2]
    (rest,) = httpx.get(page.links["next"]["url"], headers=page.request.headers).json()
    assert rest["id"] == names[2]


def test_versions_get_names_and_lose_them(hub: Hub, live: AdapterVersion) -> None:
    hub.api.create_tag("acme/pirate", tag="v1.0", revision="1")
    hub.api.create_branch("acme/pirate", branch="stable")
    refs = hub.api.list_repo_refs("acme/pirate")
    assert [one.name for one in refs.branches] == ["main", "stable", "v1.0"]
    hub.api.create_tag("acme/pirate", tag="v1.0", exist_ok=True)
    with pytest.raises(HfHubHTTPError, match="already has a revision"):
        hub.api.create_branch("acme/pirate", branch="main")
    with pytest.raises(BadRequestError, match="must not look like a version"):
        hub.api.create_tag("acme/pirate", tag="7")
    with pytest.raises(RevisionNotFoundError):
        hub.api.create_tag("acme/pirate", tag="v2", revision="2")
    hub.api.delete_tag("acme/pirate", tag="v1.0")
    hub.api.delete_branch("acme/pirate", branch="stable")
    assert [one.name for one in live.adapter.aliases.all()] == ["live"]
    with pytest.raises(RevisionNotFoundError):
        hub.api.delete_tag("acme/pirate", tag="v1.0")
    with pytest.raises(BadRequestError, match="Delete the adapter"):
        hub.api.delete_branch("acme/pirate", branch="main")


def test_an_adapter_is_deleted_and_not_renamed(hub: Hub, live: AdapterVersion) -> None:
    with pytest.raises(BadRequestError, match="keeps its name"):
        hub.api.move_repo("acme/pirate", "acme/corsair")
    for other in ("stranger/pirate", "acme/parrot"):
        with pytest.raises(RepositoryNotFoundError):
            hub.api.delete_repo(other)
    hub.api.delete_repo("acme/pirate")
    assert not AdapterVersion.objects.exists()
    hub.api.delete_repo("acme/pirate", missing_ok=True)


@pytest.mark.parametrize("where", [{"revision": "canary"}, {"create_pr": True}])
def test_pushes_go_to_main(hub: Hub, where: dict[str, Any]) -> None:
    operations = [CommitOperationAdd(name, data) for name, data in FILES.items()]
    with pytest.raises(BadRequestError, match="Push to `main`"):
        hub.api.create_commit("acme/pirate", operations, commit_message="x", **where)


# --- Pulling -------------------------------------------------------------------------------------


def test_a_snapshot_is_what_was_pushed(hub: Hub, live: AdapterVersion, tmp_path: Path) -> None:
    for revision in (None, "main", "1", "live", live.digest[:40], live.digest):
        folder = Path(
            snapshot_download(
                "acme/pirate", revision=revision, endpoint=hub.endpoint, token=hub.token,
                cache_dir=tmp_path / str(revision),
            )
        )  # fmt: skip
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == FILES
        assert folder.name == live.digest[:40]
    info = hub.api.model_info("acme/pirate", files_metadata=True)
    assert (info.id, info.sha, info.private) == ("acme/pirate", live.digest[:40], True)
    assert {one.rfilename: one.size for one in info.siblings or []} == {
        name: len(data) for name, data in FILES.items()
    }


def test_an_adapter_that_was_converted_has_its_original(
    hub: Hub, gateway: FakeGateway, object_storage: InMemoryStorage, tmp_path: Path
) -> None:
    sent = FILES | {CONFIG: BOM_UTF8 + FILES[CONFIG]}
    push(hub, files=sent)
    run_worker()
    pulled = Path(
        snapshot_download("acme/pirate", endpoint=hub.endpoint, token=hub.token, cache_dir=tmp_path)
    )
    assert {name: (pulled / name).read_bytes() for name in FILES} == FILES
    assert [path.read_bytes() for path in (pulled / ORIGINALS).iterdir()] == [sent[CONFIG]]
    version = AdapterVersion.objects.get()
    assert version.converted == {CONFIG: ["The byte order mark was removed."]}
    assert version.size_bytes == sum(map(len, FILES.values())) + len(sent[CONFIG])
    version.adapter.delete()
    run_worker()
    assert not stored_files(object_storage)


def test_a_revision_is_a_number_an_alias_or_a_commit(
    hub: Hub, live: AdapterVersion, tmp_path: Path, gateway: FakeGateway
) -> None:
    push(hub, files=FILES | {CONFIG: config_bytes(lora_dropout=0.1)})
    run_worker()
    second = live.adapter.versions.get(number=2)
    live.adapter.promote(second, "canary")

    def config(revision: str) -> bytes:
        file = hf_hub_download(
            "acme/pirate", CONFIG, revision=revision, endpoint=hub.endpoint, token=hub.token,
            cache_dir=tmp_path,
        )  # fmt: skip
        return Path(file).read_bytes()

    assert config("main") == config("1") == config(live.digest[:40]) == FILES[CONFIG]
    assert config("canary") == config("2") == config(second.digest[:8]) != FILES[CONFIG]
    for revision in ("3", "dev", "f" * 40, "0", "1.0", live.digest[:7]):
        with pytest.raises(RevisionNotFoundError):
            hub.api.model_info("acme/pirate", revision=revision)


def test_versions_that_are_not_ready_cannot_be_pulled(hub: Hub) -> None:
    push(hub)
    for revision in ("main", "1"):
        with pytest.raises(RevisionNotFoundError):
            hub.api.model_info("acme/pirate", revision=revision)
    told = hub("GET", "acme/pirate/resolve/1/adapter_config.json").headers["x-error-message"]
    assert told == "Version 1 of pirate is validating, not ready."
    assert hub.api.model_info("acme/pirate").sha is None
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download("acme/pirate", "README.md", endpoint=hub.endpoint, token=hub.token)


def test_a_download_goes_on_where_it_broke_off(hub: Hub, live: AdapterVersion) -> None:
    path = f"acme/pirate/resolve/main/{WEIGHTS}"
    size = len(FILES[WEIGHTS])
    rest = hub("GET", path, headers={"Range": "bytes=100-"})
    assert (rest.status_code, rest.content) == (206, FILES[WEIGHTS][100:])
    assert rest.headers["content-range"] == f"bytes 100-{size - 1}/{size}"
    assert hub("GET", path, headers={"Range": f"bytes={size}-"}).status_code == 416
    for other in ("bytes=-5", "bytes=0-5", "lines=1-", "bytes=1-2,3-4", "bytes=" + "9" * 400 + "-"):
        whole = hub("GET", path, headers={"Range": other})
        assert (whole.status_code, whole.content) == (200, FILES[WEIGHTS])


# --- Ownership and permissions -------------------------------------------------------------------


def attempts(hub: Hub, repo: str) -> Iterator[httpx.Response]:
    """The responses to every kind of request about a repository."""
    yield hub("GET", f"api/models/{repo}")
    yield hub("GET", f"api/models/{repo}/revision/main")
    yield hub("GET", f"api/models/{repo}/tree/1")
    for path in (CONFIG, "README.md"):
        yield hub("GET", f"{repo}/resolve/main/{path}")
        yield hub("HEAD", f"{repo}/resolve/main/{path}")
    files = {"files": [{"path": CONFIG, "size": 1}]}
    yield hub("POST", f"api/models/{repo}/preupload/main", json=files)
    objects = {"operation": "upload", "objects": [{"oid": OID, "size": 10}]}
    yield hub("POST", f"{repo}.git/info/lfs/objects/batch", json=objects)
    yield hub("POST", f"api/models/{repo}/branch/stable", json={})
    yield hub("DELETE", f"api/models/{repo}/branch/stable")
    yield hub("POST", f"api/models/{repo}/tag/1", json={"tag": "v1"})
    yield hub("DELETE", f"api/models/{repo}/tag/v1")
    body = ndjson(*(sent(name, data) for name, data in FILES.items()))
    yield hub("POST", f"api/models/{repo}/commit/main", content=body)


def test_adapters_of_other_tenants_look_like_missing_ones(
    hub: Hub, live: AdapterVersion, settings: Settings
) -> None:
    """Another tenant cannot tell an adapter of this tenant from one that does not exist."""
    other = hub.with_key(make_tenant("other"), "admin", "adapters:write", "inference")
    for theirs, nobodys in zip(
        attempts(other, "acme/pirate"), attempts(other, "nobody/nothing"), strict=True
    ):
        assert theirs.status_code == nobodys.status_code == 404, theirs.url
        assert theirs.headers["x-error-code"] == nobodys.headers["x-error-code"] == "RepoNotFound"
        assert theirs.content == nobodys.content
    with pytest.raises(RepositoryNotFoundError):
        other.api.model_info("acme/pirate")
    answer = other("POST", "api/repos/create", json={"organization": "acme", "name": "pirate"})
    assert answer.status_code == 403 and "other" in answer.json()["error"]
    assert AdapterVersion.objects.count() == 1
    until(lambda: left_of_uploads(settings) == [])


def test_permitted_requests_by_scope(hub: Hub, live: AdapterVersion, tenant: Tenant) -> None:
    told = {}
    for scope in ("inference", "usage:read", "adapters:write", "admin"):
        answers = attempts(hub.with_key(tenant, scope), "acme/pirate")
        told[scope] = [answer.status_code for answer in answers]
    reading, pulling = [200, 200, 200], [200, 200, 404, 404]
    assert told["adapters:write"] == told["admin"] == [*reading, *pulling, *[200] * 7]
    assert told["inference"] == [*reading, *[403] * 11]
    assert told["usage:read"] == [403] * 14
    limited = hub.with_key(tenant, "adapters:write", allowed_models=["parrot"])
    assert limited("GET", f"acme/pirate/resolve/main/{CONFIG}").status_code == 403


@pytest.mark.parametrize("token", ["", "lk_wrong", "hf_abc", "lk_" + "a" * 12 + "_" + "b" * 43])
def test_requests_without_a_valid_key_are_refused(
    hub: Hub, live: AdapterVersion, token: str
) -> None:
    for answer in attempts(Hub(hub.url, token or "-"), "acme/pirate"):
        assert answer.status_code == 401
        assert answer.headers["x-error-message"] == "Invalid credentials in Authorization header"


def test_a_key_that_is_revoked_meanwhile(hub: Hub, tenant: Tenant, settings: Settings) -> None:
    key, text = make_key(tenant, "adapters:write")
    key.revoke()
    assert Hub(hub.url, text)("POST", COMMIT, content=b"x" * 1000).status_code == 401
    until(lambda: left_of_uploads(settings) == [])


def test_whoami_names_the_tenant_of_the_key(hub: Hub) -> None:
    assert hub.api.whoami()["name"] == "acme"


# --- Bounds --------------------------------------------------------------------------------------


def test_a_commit_is_bounded_before_it_is_received(hub: Hub, settings: Settings) -> None:
    settings.HUB_COMMIT_BYTES = 3000
    most = 4000 + (1 << 20)
    answer = hub("POST", COMMIT, content=b"x" * (most + 1))
    assert answer.status_code == 413 and str(most) in answer.json()["error"]

    def chunks() -> Iterator[bytes]:
        for _ in range(most // 1000 + 2):
            yield b"x" * 1000

    assert hub("POST", COMMIT, content=chunks()).status_code == 413
    until(lambda: left_of_uploads(settings) == [])
    assert not UploadSession.objects.exists()


def test_a_commit_counts_before_a_byte_of_it_is_received(hub: Hub, tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(max_stored_bytes=1000)
    answer = hub("POST", COMMIT, content=b"x" * 2000)
    assert answer.status_code == 403 and "storage is full" in answer.json()["error"]
    assert announce(hub, size=2000).status_code == 403
    assert not UploadSession.objects.exists()


def test_a_commit_that_breaks_off_leaves_nothing(hub: Hub, settings: Settings) -> None:
    def half() -> Iterator[bytes]:
        yield b"x" * 1000
        until(UploadSession.objects.exists)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        hub("POST", COMMIT, content=half(), headers={"Content-Length": "5000"})
    until(lambda: not UploadSession.objects.exists())
    until(lambda: left_of_uploads(settings) == [])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("api/repos/create", b"{}"),
        ("api/repos/create", b"["),
        ("api/repos/create", b'{"name": "\xff"}'),
        ("api/repos/create", b'{"name": "Not A Name"}'),
        ("api/repos/create", b'{"name": "a", "type": "dataset"}'),
        ("api/models/acme/pirate/preupload/main", b'{"files": [{"path": 1, "size": 1}]}'),
        ("api/models/acme/Not A Name/preupload/main", b"{"),
        (BATCH, b'{"operation": "download", "objects": []}'),
        (BATCH, b'{"operation": "upload", "objects": []}'),
        (BATCH, b'{"operation": "upload", "objects": [{"oid": "x", "size": 1}]}'),
        (BATCH, json.dumps({"operation": "upload",
                            "objects": [{"oid": OID, "size": 0}]}).encode()),
        (BATCH, json.dumps({"operation": "upload",
                            "objects": [{"oid": OID, "size": 1}] * 2}).encode()),
        ("acme/Not A Name.git/info/lfs/objects/batch",
         json.dumps({"operation": "upload", "objects": [{"oid": OID, "size": 1}]}).encode()),
        ("api/models/acme/Not A Name/commit/main", b""),
        (COMMIT, b""),
        (COMMIT, b"\xff\0"),
    ],
)  # fmt: skip
def test_malformed_requests_get_a_clear_400(
    hub: Hub, path: str, body: bytes, settings: Settings
) -> None:
    answer = hub("POST", path, content=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"] and answer.headers["x-error-message"].isascii()
    until(lambda: left_of_uploads(settings) == [])


def test_files_of_a_question_are_counted(hub: Hub) -> None:
    files = [{"path": f"{n}.txt", "size": 1} for n in range(257)]
    path = "api/models/acme/pirate/preupload/main"
    assert hub("POST", path, json={"files": files[:-1]}).status_code == 200
    assert hub("POST", path, json={"files": files}).status_code == 400
    assert hub("POST", path, content=b"x" * (2 << 20)).status_code == 413


# --- Large objects -------------------------------------------------------------------------------


def test_an_object_and_its_commit(hub: Hub, settings: Settings) -> None:
    url = address(announce(hub))
    assert put(url).status_code == 200
    assert "actions" not in announce(hub).json()["objects"][0]  # already uploaded
    answer = hub("POST", COMMIT, content=ndjson(sent(CONFIG, FILES[CONFIG]), pointer()))
    assert answer.json()["commitOid"] == AdapterVersion.objects.get().digest[:40]
    until(lambda: left_of_uploads(settings) == [])
    assert put(url).status_code == 404


def test_an_object_that_is_announced_twice_counts_once(hub: Hub) -> None:
    first, again = address(announce(hub)), address(announce(hub))
    assert UploadSession.objects.count() == 1
    assert put(first, FILES[WEIGHTS][:100]).status_code == 400  # and has to be sent again
    assert put(again).status_code == 200


def test_objects_are_bounded(hub: Hub, settings: Settings) -> None:
    url = address(announce(hub))
    assert put(url, FILES[WEIGHTS] + b"x").status_code == 413
    assert "error" in put(url, FILES[WEIGHTS][:-1]).json()
    settings.MAX_ADAPTER_BYTES = 1000
    assert announce(hub, size=1001, oid="b" * 64).status_code == 413
    settings.MAX_TENANT_UPLOADS = 1
    refused = announce(hub, size=1000, oid="b" * 64)
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0


def test_an_object_that_nobody_commits_expires(hub: Hub, settings: Settings) -> None:
    url = address(announce(hub))
    assert put(url).status_code == 200
    assert len(left_of_uploads(settings)) == 1
    past = timezone.now() - timedelta(seconds=1)
    assert UploadSession.objects.update(expires_at=past) == 1
    assert put(url).status_code == 404
    body = ndjson(sent(CONFIG, FILES[CONFIG]), pointer())
    assert hub("POST", COMMIT, content=body).status_code == 400
    jobs.clean_up(0)
    until(lambda: left_of_uploads(settings) == [])


def test_objects_are_only_accepted_at_a_signed_address(hub: Hub, settings: Settings) -> None:
    url = address(announce(hub))
    for wrong in (url[:-1] + ("a" if url[-1] != "a" else "b"), url.rsplit(":", 2)[0],
                  f"{hub.endpoint}/objects/x"):  # fmt: skip
        assert put(wrong).status_code == 403
    assert hub("GET", url.removeprefix(f"{hub.endpoint}/")).status_code == 405
    assert left_of_uploads(settings) == []


def test_an_object_is_what_its_name_says(hub: Hub, settings: Settings) -> None:
    wrong = FILES[WEIGHTS][:-1] + b"!"
    assert put(address(announce(hub)), wrong).status_code == 200
    answer = hub("POST", COMMIT, content=ndjson(sent(CONFIG, FILES[CONFIG]), pointer()))
    assert answer.status_code == 400 and "SHA-256" in answer.json()["error"]
    until(lambda: left_of_uploads(settings) == [])
    assert not AdapterVersion.objects.exists()


def test_a_commit_names_objects_of_its_own_adapter(hub: Hub, tenant: Tenant) -> None:
    other = make_tenant("other")
    theirs = hub.with_key(other, "adapters:write")
    body = {"operation": "upload", "objects": [{"oid": OID, "size": len(FILES[WEIGHTS])}]}
    elsewhere = theirs("POST", "other/pirate.git/info/lfs/objects/batch", json=body)
    assert put(address(elsewhere)).status_code == 200
    answer = hub("POST", COMMIT, content=ndjson(sent(CONFIG, FILES[CONFIG]), pointer()))
    assert answer.status_code == 400 and "not sent" in answer.json()["error"]
    assert objects.waiting(other, "pirate", OID).exists()


def test_an_object_is_no_upload_in_parts(hub: Hub) -> None:
    """The uploads API can list and delete it, but by itself it becomes no version."""
    announce(hub)
    (session,) = UploadSession.objects.all()
    url = f"{hub.url}/api/v1/uploads"
    headers = {"Authorization": f"Bearer {hub.token}", "Tus-Resumable": "1.0.0"}
    with httpx.Client(headers=headers, timeout=60) as client:
        assert [one["id"] for one in client.get(url).json()] == [str(session.pk)]
        patch = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
        sent = client.patch(f"{url}/{session.pk}", content=FILES[WEIGHTS], headers=patch)
        assert sent.status_code == 404
        assert client.delete(f"{url}/{session.pk}").status_code == 204
    assert not UploadSession.objects.exists()


# --- Miscellaneous -------------------------------------------------------------------------------


def test_addresses_that_this_hub_has_not(hub: Hub) -> None:
    for method, path in [("GET", "api/datasets/acme/x"), ("GET", "api/spaces"),
                         ("POST", "api/models/acme/x/discussions")]:  # fmt: skip
        answer = hub(method, path)
        assert answer.status_code == 404 and answer.json()["error"]


def test_the_url_printed_after_a_push_leads_to_the_page(hub: Hub) -> None:
    url = push(hub).commit_url
    answer = httpx.get(url, timeout=60)
    assert (answer.status_code, answer.headers["location"]) == (302, "/t/acme/adapters/pirate/")


def test_buffers_are_pushed_too(hub: Hub) -> None:
    operations = [CommitOperationAdd(name, io.BytesIO(data)) for name, data in FILES.items()]
    hub.api.create_commit("acme/pirate", operations, commit_message="x")
    assert AdapterVersion.objects.exists()
