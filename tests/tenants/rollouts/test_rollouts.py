"""Rollouts in the database: their transitions, each tenant's place, the audit log and figures."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from inference import pools as gateway_pools
from inference.link.engine_info import ModelInfo
from tenants.adapters import trials
from tenants.directory import pools
from tenants.errors import IllegalRolloutStep, NotRollable, RevisionInRollout, RolloutUnderWay
from tenants.models import (
    Adapter,
    AdapterVersion,
    AuditEntry,
    BaseModel,
    PoolRevision,
    Rollout,
    Standing,
    Trial,
    Turn,
)
from tenants.models.adapters import DEFAULTS, check_defaults
from tenants.models.audit import Actor, acting
from tenants.rollouts import progress
from tests.tenants.making import make_base_of, make_tenant, make_user
from tests.tenants.rollouts.conftest import INFO, NEWER, Pool

pytestmark = pytest.mark.django_db


def standing(revision: PoolRevision) -> str:
    revision.refresh_from_db()
    return revision.standing


# --- Revisions -----------------------------------------------------------------------------------


def test_the_first_revision_serves_and_another_waits(pool: Pool) -> None:
    make_base_of(NEWER)
    assert (standing(pool.old), standing(pool.new)) == ("serving", "waiting")


def test_a_base_model_may_say_that_new_ones_serve_at_once(pool: Pool) -> None:
    BaseModel.objects.update(serves_new=True)
    make_base_of(NEWER)
    assert (standing(pool.old), standing(pool.new)) == ("serving", "serving")


def test_replacing_all_engines_needs_no_rollout(pool: Pool) -> None:
    PoolRevision.objects.filter(pk=pool.old.pk).update(seen_at=timezone.now() - pools.LIVE_FOR)
    make_base_of(NEWER)
    assert standing(pool.new) == "serving"


@pytest.mark.parametrize("end", ["abort", None])
def test_a_revision_of_a_rollout_does_not_start_serving_by_itself(
    pool: Pool, end: str | None
) -> None:
    rollout = Rollout.objects.start(pool.new)
    if end is not None:
        getattr(rollout, end)()
    before = standing(pool.new)
    PoolRevision.objects.filter(pk=pool.old.pk).update(seen_at=timezone.now() - pools.LIVE_FOR)
    make_base_of(NEWER)
    assert standing(pool.new) == before != "serving"


def test_a_revision_of_a_rollout_is_remembered_and_others_are_not(pool: Pool) -> None:
    pool.tried(pool.tenant())
    pool.met(pool.old, 5)
    Rollout.objects.start(pool.new).abort()
    PoolRevision.objects.update(seen_at=timezone.now() - pools.KEPT_FOR)
    make_base_of(ModelInfo("base", 512, 4, 16, 4096, {}, "vllm", "r3"))
    assert not PoolRevision.objects.filter(pk=pool.old.pk).exists()
    assert set(Trial.objects.values_list("revision", flat=True)) == {pool.new.pk}


def test_an_operator_says_what_a_revision_is_for(pool: Pool) -> None:
    pool.new.stand(Standing.SERVING)
    assert standing(pool.new) == "serving"
    pool.new.stand(Standing.WITHDRAWN)
    Rollout.objects.start(pool.new)
    with pytest.raises(RevisionInRollout):
        pool.new.stand(Standing.SERVING)
    assert standing(pool.new) == "waiting"


# --- Steps ---------------------------------------------------------------------------------------


def test_a_rollout_from_its_start_to_its_end(pool: Pool) -> None:
    rollout = Rollout.objects.start(pool.new, created_by=make_user("operator"))
    assert (rollout.state, rollout.weight, rollout.next_weight) == ("running", 0, 5)
    rollout.set_weight(25)
    assert rollout.next_weight == 50
    rollout.pause()
    with pytest.raises(IllegalRolloutStep, match="is paused"):
        rollout.pause()
    rollout.resume()
    rollout.set_weight(100)
    assert rollout.next_weight is None
    rollout.finish()
    assert (standing(pool.old), standing(pool.new)) == ("waiting", "serving")
    assert rollout.ended_at is not None and not rollout.is_open
    for step in (rollout.pause, rollout.resume, rollout.abort, rollout.finish):
        with pytest.raises(IllegalRolloutStep, match="is finished"):
            step()


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_rolled_back_revision_is_withdrawn(pool: Pool, by_itself: bool) -> None:
    rollout = Rollout.objects.start(pool.new)
    rollout.set_weight(50)
    rollout.roll_back("x" * 2000) if by_itself else rollout.abort()
    assert (standing(pool.old), standing(pool.new)) == ("serving", "withdrawn")
    assert rollout.state == ("rolled back" if by_itself else "aborted")
    assert len(rollout.reason) == (1000 if by_itself else 0)
    assert Rollout.objects.start(pool.new).is_open, "an operator may try again"


def test_invalid_rollouts_are_refused(pool: Pool) -> None:
    with pytest.raises(NotRollable, match="is already serving"):
        Rollout.objects.start(pool.old)
    Rollout.objects.start(pool.new)
    with pytest.raises(RolloutUnderWay):
        Rollout.objects.start(pool.new)
    Rollout.objects.get().abort()
    pool.old.stand(Standing.WITHDRAWN)
    with pytest.raises(NotRollable, match="no tenants to move"):
        Rollout.objects.start(pool.new)


@pytest.mark.parametrize(
    "plan",
    [
        {"steps": []},
        {"steps": [5, 5, 100]},
        {"steps": [50, 25, 100]},
        {"steps": [0, 100]},
        {"steps": [50]},
        {"steps": list(range(80, 101))},
        {"step_s": 0},
        {"max_error_percent": -1.0},
        {"max_ttft_ratio": 0.5},
    ],
)
def test_plans_that_are_none(pool: Pool, plan: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Rollout.objects.start(pool.new, **plan)
    assert standing(pool.new) == "waiting" and not Rollout.objects.exists()


def test_the_database_holds_to_it_as_well(pool: Pool) -> None:
    rollout = Rollout.objects.start(pool.new)
    other = make_base_of(ModelInfo("other", 512, 4, 16, 4096, {}, "vllm"))
    for change in ({"state": "finished"}, {"weight": 101}, {"state": "gone"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Rollout.objects.update(**change)
    with pytest.raises(IntegrityError), transaction.atomic():
        Rollout.objects.create(base_model=pool.base, revision=pool.new)
    with pytest.raises(IntegrityError), transaction.atomic():
        Rollout.objects.filter(pk=rollout.pk).update(base_model=other)
        connection.check_constraints()


def test_every_step_is_in_the_audit_log(pool: Pool) -> None:
    operator = make_user("operator")
    earlier = AuditEntry.objects.count()
    with acting(Actor("user", operator.pk, "operator")):
        rollout = Rollout.objects.start(pool.new)
    rollout.set_weight(5)
    Rollout.objects.update(report={"moved": 1})
    rollout.tenants.create(tenant=pool.tenant("acme"), turn=Turn.LAST)
    rollout.roll_back("too many errors")
    kinds = ("rollout", "revision", "turn")
    entries = [one for one in AuditEntry.objects.order_by("id")[earlier:] if one.kind in kinds]
    assert [(one.actor_name, one.kind, one.action) for one in entries] == [
        ("operator", "rollout", "created"),
        ("", "rollout", "changed"),
        ("", "turn", "created"),
        ("", "rollout", "changed"),
        ("", "revision", "changed"),
    ]
    raised, turn, ended = entries[1], entries[2], entries[3]
    assert (raised.before["weight"], raised.after["weight"]) == (0, 5)  # type: ignore[index]
    assert turn.tenant is not None and turn.tenant.slug == "acme"
    assert ended.after is not None and ended.after["reason"] == "too many errors"


def test_defaults_of_a_base_model_are_audited_and_its_description_is_not(pool: Pool) -> None:
    pool.base.defaults = {"temperature": 0.2}
    pool.base.save()
    make_base_of(INFO)
    (entry,) = AuditEntry.objects.filter(kind="base model")
    assert entry.after == {"defaults": {"temperature": 0.2}}


@pytest.mark.parametrize(
    "defaults",
    [
        [],
        {"colour": 1},
        {"temperature": "hot"},
        {"temperature": True},
        {"temperature": 3},
        {"temperature": float("nan")},
        {"max_tokens": 1.5},
        {"max_tokens": 0},
    ],
)
def test_defaults_that_are_none(defaults: Any) -> None:
    with pytest.raises(ValidationError):
        check_defaults(defaults)


def test_every_default_may_be_at_its_bounds() -> None:
    for name, (_, least, most) in DEFAULTS.items():
        check_defaults({name: least})
        check_defaults({name: most})


# --- Placement of tenants ------------------------------------------------------------------------


def test_places(pool: Pool) -> None:
    first, failed, plain = pool.tenant("first"), pool.tenant("failed"), pool.tenant("plain")
    last = pool.tenant("last")
    for tenant in (first, plain, last):
        pool.tried(tenant)
    pool.version(first, alias="beta")  # neither live nor tried
    pool.tried(failed, passed=False)
    untried = pool.tenant("untried")
    suspended = pool.tenant("suspended")
    suspended.status = "suspended"
    suspended.save()
    rollout = Rollout.objects.start(pool.new)
    rollout.tenants.create(tenant=first, turn=Turn.FIRST)
    rollout.tenants.create(tenant=last, turn=Turn.LAST)
    placed = progress.placement(rollout)
    assert (placed.tenants, placed.moved) == (5, 1)
    rollout.set_weight(100)
    placed = progress.placement(rollout)
    assert placed.moved == 2, "first and plain"
    assert [one.slug for one in placed.behind] == ["failed"]
    assert [(one.slug, one.untried) for one in placed.due] == [("untried", 1)]
    assert (placed.untried, untried.slug) == (1, "untried")


def test_tenants_that_would_move_next_are_due(pool: Pool) -> None:
    rollout = Rollout.objects.start(pool.new, steps=[50, 100])
    tenants = [pool.tenant(f"t{i}") for i in range(30)]
    half = {
        one.slug for one in tenants
        if gateway_pools.draw(rollout.pk, one.slug) < gateway_pools.PARTS // 2
    }  # fmt: skip
    assert 0 < len(half) < 30
    assert {one.slug for one in progress.placement(rollout).due} == half


def test_versions_of_training_loops_are_neither_tried_nor_waited_for(pool: Pool) -> None:
    loaded = pool.version(make_tenant("acme"))
    Adapter.objects.update(short_lived=True)
    AdapterVersion.objects.update(expires_at=timezone.now() + timedelta(hours=1))
    placed = progress.placement(Rollout.objects.start(pool.new, steps=[100]))
    assert (placed.due, placed.behind) == ([], [])
    for tenants in (None, [loaded.adapter.tenant_id]):
        assert trials.untried(pool.new, tenants) == []


def test_figures_of_both_sides(pool: Pool) -> None:
    rollout = Rollout.objects.start(pool.new)
    pool.met(pool.old, 100, errors=2)
    pool.met(pool.new, 50, errors=5)
    told = progress.report(rollout)
    assert told["old"] == {
        "requests": 100, "errors": 2, "error_percent": 2.0, "ttft_p95_s": 0.01,
    }  # fmt: skip
    assert told["new"]["error_percent"] == 10.0
    later = timezone.now() + progress.WINDOW + timedelta(minutes=2)
    old, new = progress.sides(rollout, later)
    assert (old.requests, new.requests) == (100, 0), "guards look at what is new"


def test_a_check_of_isolation_counts_on_the_new_revision_alone(pool: Pool) -> None:
    rollout = Rollout.objects.start(pool.new)

    def told() -> bool | None:
        placed = progress.placement(rollout)
        return progress.observe(rollout, placed, {}, timezone.now()).isolation

    old = pool.isolated()
    old.revision = pool.old.digest
    old.save()
    assert told() is None
    pool.isolated(passed=None)
    assert told() is None
    pool.isolated()
    assert told() is True
    rollout.set_weight(5)
    assert told() is None, "at each weight anew"
    pool.isolated(passed=False)
    rollout.set_weight(25)
    assert told() is False, "whenever it was"
