"""A worker's jobs for pools: trials of adapters, and the steps of rollouts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.utils import timezone
from procrastinate.contrib.django.models import ProcrastinateJob

from tenants import isolation
from tenants.adapters import trials
from tenants.adapters.jobs import judge_version
from tenants.adapters.probe import LoadFailed
from tenants.models import (
    AdapterVersion,
    IsolationCheck,
    RevisionMinute,
    Rollout,
    Standing,
    State,
    Trial,
)
from tenants.rollouts import pool_checks
from tenants.rollouts.driver import ENGINE_GONE_S
from tests.adapters.conftest import FakeGateway
from tests.adapters.working import run_worker
from tests.tenants.rollouts.conftest import Pool

pytestmark = pytest.mark.usefixtures("no_jobs")


def look(after: timedelta = timedelta(0)) -> None:
    assert pool_checks.check_pools(timezone.now() + after)


def outcome(version: AdapterVersion, pool: Pool) -> bool | None:
    trial = version.trials.filter(revision=pool.new).first()
    return None if trial is None else trial.passed


def asked(gateway: FakeGateway) -> list[tuple[str, str]]:
    """The tenant and the revision of each trial that the gateway was asked for."""
    return [(body["name"].split("/")[0], body["revision"]) for _, _, body in gateway.asked]


def queued(task: str) -> int:
    return int(ProcrastinateJob.objects.filter(task_name=task, status="todo").count())


# --- Trials --------------------------------------------------------------------------------------


def test_adapters_are_tried_where_they_may_run(pool: Pool, gateway: FakeGateway) -> None:
    acme = pool.tenant("acme")
    pool.engines(old=1, new=1)
    look()
    assert queued("try_version") == 0, "on a revision that waits nothing runs"
    pool.new.stand(Standing.SERVING)
    look()
    look()
    assert queued("try_version") == 1, "once"
    run_worker()
    assert asked(gateway) == [("acme", pool.new.digest)]
    (trial,) = Trial.objects.filter(version__adapter__tenant=acme, revision=pool.new)
    assert trial.passed and trial.report["max_logprob_delta"] == 1.5
    look()
    assert queued("try_version") == 0


def test_adapters_are_tried_on_a_revision_that_takes_over(pool: Pool, gateway: FakeGateway) -> None:
    acme = pool.tenant("acme")
    pool.engines(new=1)
    look()
    run_worker()
    assert outcome(acme.adapters.get().versions.get(), pool)


def test_only_some_trials_are_queued_at_a_time(
    pool: Pool, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "AT_A_TIME", 2)
    for _ in range(5):
        pool.tenant()
    pool.new.stand(Standing.SERVING)
    pool.engines(old=1, new=1)
    for rest in (3, 1, 0):
        look()
        assert queued("try_version") == min(2, rest + 1 if rest < 1 else 2)
        run_worker()
        assert 5 - Trial.objects.filter(revision=pool.new).count() == rest


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"max_logprob_delta": 0.0}, "changes no log-probability"),
        ({"finite": False}, "not finite"),
    ],
)
def test_an_adapter_that_fails_on_a_revision_stays_ready_on_others(
    pool: Pool, gateway: FakeGateway, answer: dict[str, Any], reason: str
) -> None:
    version = pool.version(pool.tenant("acme"), "second")
    gateway.say(answer)
    trials.try_on(version, pool.new)
    trial = version.trials.get(revision=pool.new)
    assert not trial.passed and reason in trial.reason
    version.refresh_from_db()
    assert version.state == State.READY


def test_an_unsupported_adapter_fails_without_a_trial(pool: Pool, gateway: FakeGateway) -> None:
    high = pool.version(pool.tenant("acme", rank=64), "high", rank=64)
    trials.try_on(high, pool.new)
    assert gateway.asked == []
    assert high.trials.get(revision=pool.new).reason == (
        "The adapter's rank is 64; this revision supports at most 16."
    )
    AdapterVersion.objects.update(config={"r": 1, "target_modules": ["q_proj", "v_proj"]})
    high.refresh_from_db()
    assert "lacks the modules v_proj" in pool.new.cannot_take(high)


def test_a_load_that_fails_is_tried_again_before_it_counts(
    pool: Pool, gateway: FakeGateway
) -> None:
    version = pool.tenant("acme").adapters.get().versions.get()
    gateway.say({"code": "adapter_load_failed", "status": 503})
    with pytest.raises(LoadFailed):
        trials.try_on(version, pool.new, last=False)
    assert outcome(version, pool) is None
    trials.try_on(version, pool.new)
    assert outcome(version, pool) is False
    assert "5 attempts" in version.trials.get(revision=pool.new).reason


def test_a_trial_without_an_engine_has_no_outcome(pool: Pool, gateway: FakeGateway) -> None:
    version = pool.tenant("acme").adapters.get().versions.get()
    gateway.say({"code": "no_engine_available", "status": 503})
    trials.try_on(version, pool.new)
    assert outcome(version, pool) is None


def test_an_upload_is_tried_where_its_tenant_is(
    pool: Pool, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One revision makes it ready; a tenant that has moved stays where it is."""
    Rollout.objects.start(pool.new)
    pool.engines(old=1, new=1)
    version = pool.version(pool.tenant("acme"), "fresh", alias="beta")
    version.aliases.all().delete()
    Trial.objects.filter(version=version).delete()
    AdapterVersion.objects.filter(pk=version.pk).update(state=State.PROBING)
    judge_version(version_id=version.pk)
    version.refresh_from_db()
    assert version.state == State.READY
    assert asked(gateway) == [("acme", pool.old.digest), ("acme", pool.new.digest)]
    assert {one.revision_id: one.passed for one in version.trials.all()} == {
        pool.old.pk: True,
        pool.new.pk: True,
    }


# --- Rollouts ------------------------------------------------------------------------------------


@pytest.fixture
def rollout(pool: Pool, gateway: FakeGateway) -> Rollout:
    pool.engines(old=1, new=1)
    return Rollout.objects.start(
        pool.new, steps=[50, 100], step_s=60, min_requests=10, needs_isolation=False
    )


def now_of(rollout: Rollout) -> tuple[str, int]:
    rollout.refresh_from_db()
    return rollout.state, rollout.weight


def test_a_rollout_from_its_first_trial_to_its_end(
    pool: Pool, gateway: FakeGateway, rollout: Rollout
) -> None:
    tenants = [pool.tenant(f"t{i}") for i in range(8)]
    look()
    assert now_of(rollout) == ("running", 0)
    assert "the test of" in rollout.report["waits_for"]
    run_worker()
    early = {slug for slug, _ in asked(gateway)}
    assert 0 < len(early) < len(tenants), "those whose turn is next"
    look()
    assert now_of(rollout) == ("running", 50)
    look()
    run_worker()
    assert {slug for slug, _ in asked(gateway)} == {one.slug for one in tenants}
    look()
    assert "more at 50%" in rollout_report(rollout)
    later = timedelta(seconds=61)
    look(later)
    assert "10 more requests" in rollout_report(rollout)
    pool.met(pool.new, 10)
    look(later)
    assert now_of(rollout) == ("running", 100)
    RevisionMinute.objects.update(minute=timezone.now() + timedelta(minutes=1))
    look(later + later)
    assert now_of(rollout) == ("finished", 100)
    pool.new.refresh_from_db()
    assert pool.new.standing == Standing.SERVING
    assert rollout.report["moved"] == len(tenants)


def rollout_report(rollout: Rollout) -> str:
    rollout.refresh_from_db()
    waits_for: str = rollout.report["waits_for"]
    return waits_for


def test_a_tenant_with_a_failed_adapter_stays_behind_until_an_operator_ends_it(
    pool: Pool, gateway: FakeGateway, rollout: Rollout
) -> None:
    for slug in ("good", "bad"):
        pool.tried(pool.tenant(slug), passed=slug == "good")
    rollout.set_weight(100)
    pool.met(pool.new, 10)
    look(timedelta(seconds=61))
    assert now_of(rollout) == ("running", 100)
    assert rollout.report["behind"] == ["bad"] and rollout.report["moved"] == 1
    assert "1 tenant cannot move" in rollout.report["waits_for"]


def test_too_many_errors_bring_everybody_back(pool: Pool, rollout: Rollout) -> None:
    rollout.set_weight(50)
    pool.met(pool.old, 100)
    pool.met(pool.new, 20, errors=3)
    look()
    assert now_of(rollout) == ("rolled back", 50)
    assert "15.0% of 20 requests failed" in rollout.reason
    rollout.refresh_from_db()
    sides = [rollout.report[side]["error_percent"] for side in ("old", "new")]
    assert sides == [0, 15], "metrics read it there"
    pool.new.refresh_from_db()
    assert pool.new.standing == Standing.WITHDRAWN


def test_a_paused_rollout_is_watched_and_not_raised(pool: Pool, rollout: Rollout) -> None:
    rollout.pause()
    look(timedelta(hours=1))
    assert now_of(rollout) == ("paused", 0)
    pool.met(pool.new, 20, errors=20)
    look()
    assert now_of(rollout)[0] == "rolled back"


def test_engines_that_stay_away_bring_everybody_back(pool: Pool, rollout: Rollout) -> None:
    Rollout.objects.update(step_s=3600)
    rollout.set_weight(50)
    pool.engines(old=1)
    look()
    look(timedelta(seconds=ENGINE_GONE_S / 2))
    assert now_of(rollout) == ("running", 50)
    pool.engines(old=1, new=1)
    look(timedelta(seconds=ENGINE_GONE_S))
    assert rollout_report(rollout) and rollout.report["gone_since"] is None
    pool.engines(old=1)
    look()
    look(timedelta(seconds=ENGINE_GONE_S + 1))
    assert now_of(rollout) == ("rolled back", 50)


def test_isolation_is_checked_on_the_new_revision(
    pool: Pool, rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    Rollout.objects.update(needs_isolation=True)
    results: list[bool | None] = [None, True]
    monkeypatch.setattr(isolation, "check", lambda base: pool.isolated(passed=results.pop(0)))
    look()
    look()
    assert queued("check_rollout") == 1 and now_of(rollout) == ("running", 0)
    run_worker()
    look()
    assert queued("check_rollout") == 0, "it could not tell just now"
    look(pool_checks.CHECK_AGAIN + timedelta(seconds=1))
    run_worker()
    assert list(IsolationCheck.objects.values_list("passed", flat=True)) == [True, None]
    look()
    assert now_of(rollout) == ("running", 50)


def test_a_step_is_checked_at_once_though_the_last_step_just_was(
    pool: Pool, rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    Rollout.objects.update(needs_isolation=True, step_s=0)
    monkeypatch.setattr(isolation, "check", lambda base: pool.isolated(passed=True))
    look()
    run_worker()
    look()
    assert now_of(rollout) == ("running", 50)
    look()
    assert queued("check_rollout") == 1


def test_a_check_that_is_not_ready_is_no_error(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_ready(base: object) -> None:
        raise isolation.NotReady("soon")

    monkeypatch.setattr(isolation, "check", not_ready)
    pool_checks.check_rollout(base_model_id=pool.base.pk)
    pool_checks.check_rollout(base_model_id=0)


def test_one_worker_looks_at_a_time(pool: Pool) -> None:
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [pool_checks.LOCK])
        assert not pool_checks.check_pools()
    finally:
        other.close()  # as when a worker dies
    wait_until_free()
    assert pool_checks.check_pools()


def wait_until_free() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_lock(%s), pg_advisory_unlock(%s)", [pool_checks.LOCK] * 2
        )


def test_old_minutes_are_forgotten(pool: Pool) -> None:
    pool.met(pool.old, 1)
    RevisionMinute.objects.update(minute=datetime.now().astimezone() - timedelta(days=8))
    look()
    assert not RevisionMinute.objects.exists()
