"""An alias may require an eval of the versions that are promoted to it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from tenants.errors import EvalMissed
from tenants.models import (
    LIVE,
    AdapterVersion,
    Alias,
    AuditEntry,
    Eval,
    EvalRun,
    PromotionGate,
    Split,
    SplitState,
    State,
    Tenant,
)
from tenants.models.gates import MAX_GATES
from tenants.naming import tuned_name
from tenants.splits import jobs, reading
from tenants.splits.judge import Act, GuardVerdict, JudgedGuard, decide
from tests.tenants.making import make_eval, make_eval_run, make_key, make_version

pytestmark = pytest.mark.django_db


@pytest.fixture
def eval(tenant: Tenant) -> Eval:
    return make_eval(tenant, "Sums")


@pytest.fixture
def second(live: AdapterVersion) -> AdapterVersion:
    return make_version(live.adapter)


@pytest.fixture
def gate(live: AdapterVersion, eval: Eval) -> PromotionGate:
    return PromotionGate.objects.put(live.adapter, LIVE, eval, 0.75)


def run(eval: Eval, model: str, passed: int, failed: int, **fields: Any) -> EvalRun:
    key = make_key(eval.tenant)[0]
    return make_eval_run(eval, key, [True] * passed + [False] * failed, model=model, **fields)


def why(version: AdapterVersion, alias: str = LIVE) -> str:
    """Why the promotion is refused; empty if it is not."""
    try:
        version.adapter.promote(version, alias)
    except EvalMissed as error:
        assert not Alias.objects.filter(version=version, name=alias).exists()
        return error.message
    return ""


def test_a_version_without_a_run(second: AdapterVersion, gate: PromotionGate) -> None:
    assert why(second) == (
        "“live” requires 75% in the eval Sums: no finished run of it has the model support@2."
    )
    assert why(second, "other") == "", "other aliases require nothing"


def test_a_version_below_and_above(second: AdapterVersion, eval: Eval, gate: PromotionGate) -> None:
    run(eval, "support@2", 2, 1)
    assert why(second) == (
        "“live” requires 75% in the eval Sums: in its last run version 2 passed 2 of 3 rows, 66.7%."
    )
    run(eval, f"support@{second.digest}", 3, 1)
    assert why(second) == ""
    assert Alias.objects.get().version == second


def test_the_last_finished_run_counts(
    second: AdapterVersion, eval: Eval, gate: PromotionGate
) -> None:
    run(eval, "support@2", 4, 0)
    run(eval, "support@2", 0, 4)
    run(eval, "support@2", 4, 0, status="failed")
    run(eval, "support@2", 4, 0, status="in_progress", ended_at=None)
    assert "0 of 4 rows, 0%" in why(second)


@pytest.mark.parametrize("model", ["support", "support@1", "support@live", "other@2", "base", ""])
def test_runs_of_something_else(
    second: AdapterVersion, eval: Eval, gate: PromotionGate, model: str
) -> None:
    run(eval, model, 4, 0)
    assert "no finished run" in why(second)


def test_runs_of_another_eval_or_of_an_earlier_version_of_that_number(
    tenant: Tenant, second: AdapterVersion, eval: Eval, gate: PromotionGate
) -> None:
    run(make_eval(tenant, "Other"), "support@2", 4, 0)
    run(eval, "support@2", 4, 0, created_at=second.created_at - timedelta(minutes=1))
    assert "no finished run" in why(second)


def test_a_run_may_name_the_fine_tuned_model(
    second: AdapterVersion, eval: Eval, gate: PromotionGate
) -> None:
    name = tuned_name(second.adapter.base_model.name, "acme", "support")
    run(eval, f"{name}@2", 4, 0)
    assert why(second) == ""


def test_a_run_without_rows(second: AdapterVersion, eval: Eval, gate: PromotionGate) -> None:
    run(eval, "support@2", 0, 0)
    assert "no finished run" in why(second)


def test_going_back_requires_nothing(
    live: AdapterVersion, second: AdapterVersion, eval: Eval, gate: PromotionGate
) -> None:
    run(eval, "support@2", 4, 0)
    alias = live.adapter.promote(second)
    alias.roll_back()
    assert Alias.objects.get().version == live


def test_the_first_ready_version_is_not_live_by_itself(
    live: AdapterVersion, gate: PromotionGate
) -> None:
    Alias.objects.all().delete()
    version = make_version(live.adapter, state=State.PROBING)
    version.become_ready()
    assert version.state == State.READY and not Alias.objects.exists()


def test_a_removed_gate_requires_nothing(second: AdapterVersion, gate: PromotionGate) -> None:
    gate.delete()
    assert why(second) == ""
    acts = AuditEntry.objects.filter(kind="gate").order_by("pk")
    assert [(one.action, one.name) for one in acts] == [
        ("created", "support@live"),
        ("deleted", "support@live"),
    ]


def test_a_gate_is_replaced(live: AdapterVersion, eval: Eval, gate: PromotionGate) -> None:
    again = PromotionGate.objects.put(live.adapter, LIVE, eval, 0.999)
    assert again.pk == gate.pk and again.percent == "99.9"


@pytest.mark.parametrize("rate", [0, -0.1, 1.01, float("nan"), float("inf")])
def test_rates(live: AdapterVersion, eval: Eval, rate: float) -> None:
    with pytest.raises(ValidationError):
        PromotionGate.objects.put(live.adapter, LIVE, eval, rate)


def test_names_and_numbers_are_bounded(live: AdapterVersion, eval: Eval) -> None:
    for name in ("UPPER", "3", "0123456789abcdef", "a b"):
        with pytest.raises(ValidationError):
            PromotionGate.objects.put(live.adapter, name, eval, 0.5)
    for number in range(MAX_GATES):
        PromotionGate.objects.put(live.adapter, f"alias-{number}", eval, 0.5)
    with pytest.raises(ValidationError, match="the maximum"):
        PromotionGate.objects.put(live.adapter, "one-more", eval, 0.5)


class TestSplit:
    def test_it_waits_for_the_eval(
        self, live: AdapterVersion, second: AdapterVersion, eval: Eval, gate: PromotionGate
    ) -> None:
        split = Split.objects.start(
            live.adapter.aliases.get(), second, None, weights=[50], promotes=True, min_requests=1
        )
        passed = [JudgedGuard("errors", GuardVerdict.PASSED)]

        def next_act() -> tuple[Act, str]:
            plan = replace(reading.plan_of(split), step_requests=1)
            decision = decide(plan, passed)
            return decision.act, decision.reason

        act, reason = next_act()
        assert act == Act.HOLD and "All guards passed. “live” requires 75%" in reason
        run(eval, "support@2", 4, 0)
        assert next_act() == (Act.PROMOTE, "All guards passed.")
        assert jobs._act(split, decide(replace(reading.plan_of(split), step_requests=1), passed))
        assert Alias.objects.get().version == second

    def test_promoting_it_is_refused_and_it_goes_on(
        self, live: AdapterVersion, second: AdapterVersion, gate: PromotionGate
    ) -> None:
        split = Split.objects.start(live.adapter.aliases.get(), second, None)
        with pytest.raises(EvalMissed):
            split.promote("Promoted by request.")
        split.refresh_from_db()
        assert split.state == SplitState.RUNNING and split.ended_at is None
        assert Alias.objects.get().version == live
        assert timezone.now() > split.created_at
