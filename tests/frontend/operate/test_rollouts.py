"""The operator's pages of revisions and rollouts."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from inference.gateway.measuring.sums import BUCKETS
from tenants.models import (
    AuditEntry,
    BaseModel,
    GatewayProcess,
    PoolRevision,
    RevisionMinute,
    Rollout,
    Standing,
    Tenant,
    Trial,
)
from tests.frontend.clients import client_of
from tests.tenants.making import (
    make_adapter,
    make_base,
    make_gateway,
    make_rollout,
    make_tenant,
    make_version,
)

PLAN = {
    "steps": "10, 100", "step_s": "60", "min_requests": "5", "max_error_percent": "1",
    "max_ttft_ratio": "", "needs_isolation": "on",
}  # fmt: skip


@pytest.fixture
def rollout(tenant: Tenant) -> Rollout:
    return make_rollout(make_base())


@pytest.fixture
def revision(rollout: Rollout) -> PoolRevision:
    """A waiting revision without a rollout."""
    rollout.delete()
    return PoolRevision.objects.get(pk=rollout.revision_id)


def at(rollout: Rollout, page: str = "one", *more: int) -> str:
    return reverse(f"operate_rollouts-{page}", args=[rollout.pk, *more])


def text_of(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def test_a_base_model_shows_its_revisions(operator: Client, revision: PoolRevision) -> None:
    version = make_version(make_adapter(make_tenant("globex")))
    Trial.objects.create(version=version, revision=revision, passed=False)
    make_gateway("http://a")
    GatewayProcess.objects.update(engines={revision.digest: 7})
    page = operator.get(reverse("operate_models-one", args=[revision.base_model_id]))
    text = text_of(page)
    assert revision.short in text and "Waiting" in text and "Serving" in text
    assert '<td class="num">7</td> <td class="num">0</td> <td class="num">1</td>' in text
    assert "Roll out revision" in text


def test_a_rollout_is_started_from_there(operator: Client, revision: PoolRevision) -> None:
    start = reverse("operate_rollouts-start", args=[revision.base_model_id])
    answer = operator.post(start, PLAN | {"revision": revision.pk})
    made = Rollout.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, at(made))
    assert (made.steps, made.step_s, made.max_ttft_ratio) == ([10, 100], 60, None)
    assert made.created_by is not None
    again = operator.post(start, PLAN | {"revision": revision.pk}, follow=True)
    assert "A rollout of this base model is in progress" in text_of(again)
    page = operator.get(reverse("operate_models-one", args=[revision.base_model_id]))
    assert "Rollout at 0%" in text_of(page)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": "10, x"}, "whole numbers"),
        ({"steps": "10, 50"}, "The last is 100"),
        ({"steps": "1000"}, "whole numbers"),
        ({"step_s": "0"}, "greater than or equal to 1"),
        ({"revision": "0"}, "valid choice"),
    ],
)
def test_a_plan_that_is_none_says_why(
    operator: Client, revision: PoolRevision, wrong: dict[str, str], message: str
) -> None:
    start = reverse("operate_rollouts-start", args=[revision.base_model_id])
    answer = operator.post(start, PLAN | {"revision": str(revision.pk)} | wrong)
    assert answer.status_code == 422 and message in text_of(answer)
    assert not Rollout.objects.exists()


def test_how_far_it_is(operator: Client, rollout: Rollout) -> None:
    RevisionMinute.objects.create(
        revision=rollout.revision,
        minute=timezone.now().replace(second=0, microsecond=0),
        requests=200,
        errors=3,
        first_tokens=[0] * 5 + [200] + [0] * (BUCKETS - 6),
    )
    report = {"waits_for": "an operator", "moved": 3, "tenants": 12, "behind": ["globex"]}
    Rollout.objects.update(report={**report, "behind_count": 1})
    for url in (at(rollout), reverse("operate_live-rollouts") + f"?rollout={rollout.pk}"):
        text = text_of(operator.get(url)).replace('\\"', '"').replace("\\n", "")
        assert "The next step waits for an operator." in text
        assert "1.5%" in text and "2.0%" in text and "0.320 s" in text
        assert "of 12" in text and "globex" in text


def test_the_live_part_of_an_unknown_rollout_is_not_found(
    operator: Client, rollout: Rollout
) -> None:
    live = reverse("operate_live-rollouts")
    for query in ("", "?rollout=x", f"?rollout={'9' * 30}", "?rollout=0"):
        assert operator.get(live + query).status_code == 404


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        (["pause"], "paused"),
        (["pause", "resume"], "running"),
        (["finish"], "finished"),
        (["abort"], "aborted"),
        (["abort", "finish"], "aborted"),
    ],
)
def test_its_steps(operator: Client, rollout: Rollout, steps: list[str], state: str) -> None:
    for step in steps:
        answer = operator.post(at(rollout, step))
        assert (answer.status_code, answer["Location"]) == (302, at(rollout))
    rollout.refresh_from_db()
    assert rollout.state == state
    shown = text_of(operator.get(at(rollout)))
    assert ('data-opens="abort"' in shown) == rollout.is_open
    actors = AuditEntry.objects.filter(kind="rollout", action="changed")
    assert set(actors.values_list("actor_kind", flat=True)) == {"user"}


def test_its_weight_by_hand(operator: Client, rollout: Rollout) -> None:
    assert operator.post(at(rollout, "weigh"), {"weight": 33}).status_code == 302
    assert operator.post(at(rollout, "weigh"), {"weight": 101}).status_code == 422
    rollout.refresh_from_db()
    assert rollout.weight == 33
    assert "33%" in text_of(operator.get(at(rollout)))


def test_turns_of_tenants(operator: Client, rollout: Rollout, tenant: Tenant) -> None:
    operator.post(at(rollout, "turn"), {"tenant": "acme", "turn": "first"})
    operator.post(at(rollout, "turn"), {"tenant": "acme", "turn": "last"})
    (turn,) = rollout.tenants.all()
    assert (turn.tenant, turn.turn) == (tenant, "last")
    assert "acme" in text_of(operator.get(at(rollout)))
    nobody = operator.post(at(rollout, "turn"), {"tenant": "nobody", "turn": "last"})
    assert nobody.status_code == 422 and "There is no such tenant" in text_of(nobody)
    operator.post(at(rollout, "drop-turn", turn.pk))
    assert not rollout.tenants.exists()


def test_a_revision_serves_or_is_withdrawn_at_once(
    operator: Client, revision: PoolRevision
) -> None:
    operator.post(reverse("operate_revisions-serving", args=[revision.pk]))
    revision.refresh_from_db()
    assert revision.standing == Standing.SERVING
    operator.post(reverse("operate_revisions-withdrawn", args=[revision.pk]))
    revision.refresh_from_db()
    assert revision.standing == Standing.WITHDRAWN


def test_settings_of_a_base_model(operator: Client, tenant: Tenant) -> None:
    base = make_base()
    url = reverse("operate_models-one", args=[base.pk])
    operator.post(url, {"temperature": "0.5", "max_tokens": "64", "serves_new": "on"})
    base.refresh_from_db()
    assert (base.defaults, base.serves_new) == ({"temperature": 0.5, "max_tokens": 64}, True)
    assert 'value="0.5"' in text_of(operator.get(url))
    refused = operator.post(url, {"temperature": "3"})
    assert refused.status_code == 422
    operator.post(url, {})
    assert BaseModel.objects.get().defaults == {}


@pytest.mark.parametrize("role", ["owner", "viewer", "outsider"])
def test_only_operators_see_and_steer_rollouts(tenant: Tenant, rollout: Rollout, role: str) -> None:
    client = client_of(tenant, role)
    live = reverse("operate_live-rollouts") + f"?rollout={rollout.pk}"
    assert client.get(at(rollout)).status_code == client.get(live).status_code == 404
    for step in ("pause", "abort", "finish", "weigh", "turn"):
        assert client.post(at(rollout, step), {"weight": 1}).status_code == 404
    start = reverse("operate_rollouts-start", args=[rollout.base_model_id])
    stand = reverse("operate_revisions-serving", args=[rollout.revision_id])
    assert client.post(start).status_code == client.post(stand).status_code == 404
    rollout.refresh_from_db()
    assert (rollout.state, rollout.weight) == ("running", 0)


def test_a_tenant_sees_where_its_adapter_was_tried(tenant: Tenant, rollout: Rollout) -> None:
    version = make_version(make_adapter(tenant))
    reason = {"reason": "The engine's output with this adapter is not finite."}
    Trial.objects.create(version=version, revision=rollout.revision, passed=False, report=reason)
    url = reverse("adapters-version", args=["acme", "support", version.number])
    text = text_of(client_of(tenant, "viewer").get(url))
    assert "Tested on" in text and rollout.revision.short in text and "not finite" in text
