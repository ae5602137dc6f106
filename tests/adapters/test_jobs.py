"""Jobs take versions from validating to ready or rejected, even if processes restart meanwhile."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.db import connection
from django.utils import timezone
from procrastinate.contrib.django.models import ProcrastinateJob
from procrastinate.jobs import Job
from pytest_django import Settings

from inference.content import CONFIG, WEIGHTS, digest_of
from tenants.adapters import jobs, store
from tenants.adapters.jobs import Backoff, clean_up, judge_later, judge_version
from tenants.adapters.probe import LoadFailed, ProbeUnavailable
from tenants.errors import IllegalTransition
from tenants.models import LIVE, Adapter, AdapterVersion, BaseModel, State, Tenant
from tenants.storage import ABANDONED_AFTER
from tests.adapters.checks.builder import config_bytes, lora
from tests.adapters.checks.test_checks import BAD_CONFIGS, BAD_WEIGHTS
from tests.adapters.conftest import FakeGateway
from tests.adapters.working import run_worker
from tests.storing import stored_files
from tests.tenants.making import make_gateway

pytestmark = pytest.mark.usefixtures("no_jobs")
SOUND = (config_bytes(), lora().bytes())


@pytest.fixture
def adapter(tenant: Tenant, base_model: BaseModel) -> Adapter:
    return Adapter.objects.create(tenant=tenant, name="pirate", base_model=base_model)


def kept(adapter: Adapter, config: bytes, weights: bytes) -> AdapterVersion:
    """A version with these files whose upload is complete, without a job."""
    digest = digest_of(*(hashlib.sha256(data).hexdigest() for data in (config, weights)))
    folder = store.new_folder(adapter, digest)
    store.save(folder, [(CONFIG, ContentFile(config)), (WEIGHTS, ContentFile(weights))])
    size_bytes = len(config) + len(weights)
    version, _ = adapter.add_version(digest, folder=folder, size_bytes=size_bytes)
    version.advance(State.VALIDATING)
    return version


Keep = Callable[..., AdapterVersion]


@pytest.fixture
def version(adapter: Adapter, object_storage: Any) -> AdapterVersion:
    return kept(adapter, *SOUND)


def judged(version: AdapterVersion) -> AdapterVersion:
    judge_version(version_id=version.pk)
    version.refresh_from_db()
    return version


# --- Verdicts ------------------------------------------------------------------------------------


def test_ready(version: AdapterVersion, gateway: FakeGateway, settings: Settings) -> None:
    assert judged(version).state == State.READY
    assert version.config == {
        "r": 4,
        "lora_alpha": 8.0,
        "use_rslora": False,
        "target_modules": ["q_proj", "v_proj"],
    }
    assert version.report == {
        "findings": [],
        "findings_omitted": 0,
        "tensors": 8,
        "parameters": len(lora().body()) // 4,
        "probe": {
            "load_s": 0.25,
            "weight_bytes": 4096,
            "max_logprob_delta": 1.5,
            "finite": True,
            "base_text": "hello",
            "adapter_text": "ahoy\N{REPLACEMENT CHARACTER}",
            "of_vector": False,
        },
        "parity": {"not_compared": "the engine reports no log-probabilities of this model"},
    }
    path, token, asked = gateway.asked[0]
    assert path == "/engine/probe"
    assert token == f"Bearer {settings.WORKER_TOKEN}"
    assert asked == {
        "base_model": "tiny",
        "name": f"acme/pirate@{version.digest}",
        "digest": version.digest,
        "rank": version.config["r"],
        "modules": version.config["target_modules"],
        "ticket": "",
    }
    assert version.adapter.aliases.get(name=LIVE).version == version


def test_first_ready_version_stays_live(version: AdapterVersion, gateway: FakeGateway) -> None:
    judged(version)
    second = judged(kept(version.adapter, config_bytes(lora_alpha=1), SOUND[1]))
    assert second.state == State.READY
    assert version.adapter.aliases.get(name=LIVE).version == version


@pytest.mark.parametrize(
    ("config", "weights", "code"),
    [
        (BAD_CONFIGS["rank above the pool"][0], SOUND[1], "rank_too_large"),
        (SOUND[0], BAD_WEIGHTS["NaN first"][0], "not_finite"),
        (SOUND[0], BAD_WEIGHTS["truncated"][0], "file_length_mismatch"),
    ],
)
def test_rejected_by_its_files(
    adapter: Adapter,
    storage: Any,
    gateway: FakeGateway,
    config: bytes,
    weights: bytes,
    code: str,
) -> None:
    version = judged(kept(adapter, config, weights))
    assert version.state == State.REJECTED
    assert [finding["code"] for finding in version.report["findings"]] == [code]
    assert not gateway.asked, "a bad adapter reaches no engine"
    assert version.folder == ""
    run_worker()
    assert stored_files(storage) == []
    assert not adapter.aliases.exists()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"max_logprob_delta": 0.0}, "no_effect"),
        ({"max_logprob_delta": 1e-5}, "no_effect"),
        ({"max_logprob_delta": None}, "not_finite_output"),
        ({"finite": False}, "not_finite_output"),
    ],
)
def test_rejected_by_its_behaviour(
    version: AdapterVersion, gateway: FakeGateway, answer: dict[str, Any], code: str
) -> None:
    gateway.say(answer)
    assert judged(version).state == State.REJECTED
    assert [finding["code"] for finding in version.report["findings"]] == [code]
    assert version.report["probe"]["load_s"] == 0.25


def test_rejected_once_it_fails_to_load_again_and_again(
    version: AdapterVersion, gateway: FakeGateway
) -> None:
    gateway.say({"code": "adapter_load_failed", "status": 503})
    for attempt in range(1, jobs.LOAD_ATTEMPTS):
        with pytest.raises(LoadFailed):
            judged(version)
        version.refresh_from_db()
        assert (version.state, version.report["failed_loads"]) == (State.PROBING, attempt)
    assert judged(version).state == State.REJECTED
    (finding,) = version.report["findings"]
    assert finding["code"] == "load_failed"
    assert "the reason" in finding["message"]


def test_one_failed_load_is_forgiven(version: AdapterVersion, gateway: FakeGateway) -> None:
    gateway.say({"code": "adapter_load_failed", "status": 503}, {})
    with pytest.raises(LoadFailed):
        judged(version)
    assert judged(version).state == State.READY


# --- Faults of Lorikeet are not held against the adapter -----------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        {"code": "no_engine_available", "status": 503},
        {"code": "adapter_unavailable", "status": 503},
        {"code": "engine_lost", "status": 502},
        {"code": "invalid_api_key", "status": 401},
        {"load_s": "soon"},
    ],
)
def test_waits_for_an_engine(
    version: AdapterVersion, gateway: FakeGateway, answer: dict[str, Any]
) -> None:
    gateway.say(answer, {})
    with pytest.raises(ProbeUnavailable):
        judged(version)
    version.refresh_from_db()
    assert version.state == State.PROBING
    assert gateway.url in version.report["waiting_for"]
    assert judged(version).state == State.READY
    assert "waiting_for" not in version.report


def test_waits_for_a_gateway(version: AdapterVersion) -> None:
    with pytest.raises(ProbeUnavailable):
        judged(version)
    version.refresh_from_db()
    assert version.report["waiting_for"] == "no gateway is alive"


def test_asks_another_gateway(version: AdapterVersion, gateway: FakeGateway) -> None:
    make_gateway("http://127.0.0.1:9")  # the discard port: nothing listens
    assert judged(version).state == State.READY


def test_files_that_changed_in_the_storage(adapter: Adapter, storage: Any) -> None:
    version = kept(adapter, *SOUND)
    path = f"{version.folder}/{WEIGHTS}"
    storage.delete(path)
    storage.save(path, ContentFile(SOUND[1][:-1] + b"!"))
    with pytest.raises(store.StoredFileDamaged):
        judged(version)
    version.refresh_from_db()
    assert version.state == State.VALIDATING
    assert "not what was uploaded" in version.report["waiting_for"]
    storage.delete(path)
    with pytest.raises(FileNotFoundError):
        judged(version)


def test_backoff_is_for_ever_and_bounded() -> None:
    for attempts, seconds in ((0, 2), (1, 4), (2, 8), (5, 60), (1000, 60)):
        job = Job(
            id=1,
            queue="default",
            lock=None,
            queueing_lock=None,
            task_name="judge_version",
            attempts=attempts,
        )
        wait = timedelta(seconds=seconds)
        begun = timezone.now()
        decision = Backoff().get_retry_decision(exception=ProbeUnavailable("x"), job=job)
        assert decision.retry_at is not None
        assert begun + wait <= decision.retry_at <= timezone.now() + wait


# --- Restarts ------------------------------------------------------------------------------------


def test_killed_before_the_probe(version: AdapterVersion, gateway: FakeGateway) -> None:
    version.advance(State.PROBING, report=store.check(version).report)
    assert judged(version).state == State.READY


@pytest.mark.parametrize("state", [State.READY, State.REJECTED, State.ARCHIVED, State.UPLOADING])
def test_run_again_when_nothing_is_left_to_do(
    version: AdapterVersion, gateway: FakeGateway, state: State
) -> None:
    AdapterVersion.objects.update(state=state)
    assert judged(version).state == state
    assert not gateway.asked


def test_deleted_meanwhile(version: AdapterVersion) -> None:
    pk = version.pk
    version.delete()
    judge_version(version_id=pk)


def test_another_run_was_faster(version: AdapterVersion, gateway: FakeGateway) -> None:
    """Of two concurrent runs (one was presumed dead), the first verdict counts."""
    version.advance(State.PROBING, report=store.check(version).report)
    slow = AdapterVersion.objects.get(pk=version.pk)
    assert judged(version).state == State.READY
    gateway.say({"max_logprob_delta": 0.0})
    with pytest.raises(IllegalTransition):
        jobs._probe(slow)
    version.refresh_from_db()
    assert version.state == State.READY


def test_on_a_real_worker(version: AdapterVersion, gateway: FakeGateway) -> None:
    judge_later(version)
    run_worker()
    version.refresh_from_db()
    assert version.state == State.READY
    assert ProcrastinateJob.objects.get(task_name="judge_version").status == "succeeded"


def test_job_of_a_killed_worker_is_taken_up(version: AdapterVersion, gateway: FakeGateway) -> None:
    judge_later(version)
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH dead AS (INSERT INTO procrastinate_workers (last_heartbeat) "
            "VALUES (now() - interval '1 minute') RETURNING id) "
            "UPDATE procrastinate_jobs SET status = 'doing', worker_id = (SELECT id FROM dead)"
        )
    jobs.tend_queue.defer(timestamp=0)  # type: ignore[call-arg]  # hidden by its decorator
    run_worker()
    version.refresh_from_db()
    assert version.state == State.READY


def test_version_without_a_job_gets_one(version: AdapterVersion) -> None:
    clean_up(timestamp=0)
    clean_up(timestamp=0)
    job = ProcrastinateJob.objects.get()
    assert job.args == {"version_id": version.pk}


# --- Tidying up ----------------------------------------------------------------------------------


def test_abandoned_uploads_go(
    version: AdapterVersion, object_storage: Any, settings: Settings
) -> None:
    young = kept(version.adapter, config_bytes(lora_alpha=1), SOUND[1])
    AdapterVersion.objects.update(state=State.UPLOADING)
    AdapterVersion.objects.filter(pk=version.pk).update(
        created_at=timezone.now() - ABANDONED_AFTER - timedelta(hours=1)
    )
    uploads = Path(settings.FILE_UPLOAD_TEMP_DIR)
    old, fresh, foreign = (uploads / name for name in ("a.upload", "b.upload", "c"))
    for path in (old, fresh, foreign):
        path.write_bytes(b"")
    day_ago = time.time() - ABANDONED_AFTER.total_seconds() - 60
    os.utime(old, (day_ago, day_ago))
    os.utime(foreign, (day_ago, day_ago))
    clean_up(timestamp=0)
    run_worker()
    assert AdapterVersion.objects.get() == young
    assert stored_files(object_storage) == [f"{young.folder}/{CONFIG}", f"{young.folder}/{WEIGHTS}"]
    assert not old.exists()
    assert fresh.exists()
    assert foreign.exists()


def test_files_of_a_deleted_adapter_go(
    version: AdapterVersion, gateway: FakeGateway, object_storage: Any
) -> None:
    version.adapter.retire()
    assert len(stored_files(object_storage)) == 2, "only once the deletion is committed"
    run_worker()
    assert not stored_files(object_storage)
