"""A split starts the run of the eval that its alias requires, and waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from tenants.errors import SplitEnded
from tenants.evals import required, runs
from tenants.models import (
    LIVE,
    AdapterVersion,
    Alias,
    AuditEntry,
    Eval,
    EvalRun,
    PromotionGate,
    Scope,
    Split,
    SplitRequest,
    SplitState,
    Tenant,
)
from tenants.permissions import Caller
from tenants.splits import jobs
from tests.evals.conftest import completion, go_on, jsonl
from tests.storing import make_bytes
from tests.tenants.callers import Api, person
from tests.tenants.making import (
    make_adapter,
    make_eval,
    make_eval_run,
    make_key,
    make_version,
)

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "adapters/support/aliases/live/split"
PLAN: dict[str, Any] = {"version": 2, "weights": [50], "min_requests": 1, "promotes": True}
ROWS = [{"item": {"question": f"{n}?", "answer": str(n)}} for n in range(4)]
SOURCE: dict[str, Any] = {
    "type": "completions",
    "model": "base",
    "input_messages": {
        "type": "template",
        "template": [{"type": "message", "role": "user", "content": "{{ item.question }}"}],
    },
    "sampling_params": {"temperature": 0},
}


@pytest.fixture
def second(tenant: Tenant) -> AdapterVersion:
    """The candidate; the first version is live."""
    first = make_version(make_adapter(tenant))
    first.adapter.promote(first)
    return make_version(first.adapter)


@pytest.fixture
def eval(tenant: Tenant) -> Eval:
    """An eval that the base model has been run on."""
    made = make_eval(tenant, "Sums")
    run = make_eval_run(made, make_key(tenant)[0], [True])
    make_bytes(run.file_id, jsonl(ROWS))
    run.source = SOURCE | {"source": {"type": "file_id", "id": run.file_id}}
    run.save()
    return made


@pytest.fixture
def gate(second: AdapterVersion, eval: Eval) -> PromotionGate:
    return PromotionGate.objects.put(second.adapter, LIVE, eval, 0.75)


@pytest.fixture
def owner(tenant: Tenant) -> Api:
    return person(tenant, "owner")[0]


def right(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 200, completion(body["messages"][-1]["content"].rstrip("?"))


def wrong(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 200, completion("I cannot tell.")


def broken(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 500, {"error": {"code": "internal_error", "message": "It broke."}}


def judged(split: Split) -> Split:
    jobs.judge(split.pk)
    split.refresh_from_db()
    return split


def with_requests(split: Split) -> None:
    """Enough of them that the guard passes."""
    SplitRequest.objects.bulk_create(
        SplitRequest(
            split=split, request_id=str(number), candidate=number % 2 == 0, weight=50,
            failed=False, cut=False, ended_at=timezone.now(),
        )
        for number in range(4000)
    )  # fmt: skip


def test_the_candidate_is_promoted_once_it_has_passed(
    owner: Api, second: AdapterVersion, gate: PromotionGate, tenant: Tenant
) -> None:
    shown = owner("POST", PATH, PLAN).json()
    split = Split.objects.select_related("eval_run__key").get()
    run = split.eval_run
    assert run is not None and run.model == "support@2" and run.eval == gate.eval
    assert shown["eval_run"] == {"id": run.pk, "eval": gate.eval_id, "status": "queued"}
    assert run.source == SOURCE | {
        "model": "support@2",
        "source": {"type": "file_id", "id": run.file_id},
    }
    assert run.key.created_by is not None and run.key.prefix.startswith("play-")
    entry = AuditEntry.objects.get(action="started eval run")
    assert (entry.name, entry.actor_kind) == (run.pk, "user")
    with_requests(split)
    assert judged(split).state == SplitState.RUNNING
    assert split.reason == (
        "All guards passed. “live” requires 75% in the eval Sums: eval running."
    )
    assert go_on(run.pk, right).passed == 4
    assert judged(split).state == SplitState.PROMOTED
    assert Alias.objects.get().version == second


@pytest.mark.parametrize("rolls_back", [True, False])
def test_a_candidate_that_misses_it_ends_as_the_rules_say(
    owner: Api, second: AdapterVersion, gate: PromotionGate, rolls_back: bool
) -> None:
    owner("POST", PATH, PLAN | {"rolls_back": rolls_back})
    split = Split.objects.get()
    assert split.eval_run_id is not None
    go_on(split.eval_run_id, wrong)
    why = "“live” requires 75% in the eval Sums: in its last run version 2 passed 0 of 4 rows, 0%."
    judged(split)
    if rolls_back:
        assert (split.state, split.reason) == (SplitState.ROLLED_BACK, why)
        return
    assert split.state == SplitState.RUNNING
    assert split.reason == f"{why} Roll it back or run the eval again."
    assert owner("POST", f"{PATH}/evaluate").json()["eval_run"]["status"] == "queued"
    split.refresh_from_db()
    go_on(split.eval_run_id, right)
    assert judged(split).reason.startswith("Waits for 1 more request")


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_that_fails_leaves_it_undecided_and_is_started_again(
    owner: Api, second: AdapterVersion, gate: PromotionGate, fails: bool
) -> None:
    owner("POST", PATH, PLAN)
    split = Split.objects.select_related("eval_run").get()
    first = split.eval_run
    assert first is not None
    if fails:
        runs.fail(first, runs.RunFault("insufficient_quota", "The budget is exhausted."))
    else:
        assert go_on(first.pk, broken).errored == 4
    with_requests(split)
    assert judged(split).state == SplitState.RUNNING
    said = "failed. The budget is exhausted." if fails else "0 of 4 rows, 0%. 4 errored."
    assert said in split.reason
    again = owner("POST", f"{PATH}/evaluate").json()["eval_run"]
    assert again["id"] != first.pk
    assert owner("POST", f"{PATH}/evaluate").json()["eval_run"] == again, "one at a time"
    go_on(again["id"], right)
    assert judged(split).state == SplitState.PROMOTED


def test_a_key_pays_for_what_it_starts(
    tenant: Tenant, second: AdapterVersion, gate: PromotionGate
) -> None:
    key, text = make_key(tenant, Scope.WRITE_ADAPTERS, Scope.INFERENCE)
    api = Api(text)
    assert api("POST", PATH, PLAN).status_code == 201
    run = EvalRun.objects.get(model="support@2")
    assert run.key == key
    assert AuditEntry.objects.get(action="started eval run").actor_kind == "key"


def test_a_key_that_may_not_run_evals_starts_the_split_alone(
    tenant: Tenant, second: AdapterVersion, gate: PromotionGate
) -> None:
    api = Api(make_key(tenant, Scope.WRITE_ADAPTERS)[1])
    shown = api("POST", PATH, PLAN).json()
    assert shown["eval_run"] is None and "lacks the scope `inference`" in shown["reason"]
    assert api("POST", f"{PATH}/evaluate").json()["code"] == "eval_not_started"
    assert not EvalRun.objects.filter(model="support@2").exists()


def test_a_finished_run_is_not_repeated(
    owner: Api, second: AdapterVersion, gate: PromotionGate, tenant: Tenant
) -> None:
    make_eval_run(gate.eval, make_key(tenant)[0], [False], model="support@2")
    assert owner("POST", PATH, PLAN).json()["eval_run"] is None
    split = Split.objects.get()
    judged(split)
    assert split.state == SplitState.RUNNING, "it was known before"


def test_without_a_gate_or_rows_nothing_is_run(
    owner: Api, second: AdapterVersion, eval: Eval, settings: Settings
) -> None:
    shown = owner("POST", PATH, PLAN).json()
    assert (shown["eval_run"], shown["reason"]) == (None, "")
    refused = owner("POST", f"{PATH}/evaluate")
    assert refused.status_code == 409 and "“live” requires no eval." in refused.text
    gate = PromotionGate.objects.put(second.adapter, LIVE, eval, 0.75)
    settings.TENANT_BATCHES = 0
    assert "at most 0 are allowed" in owner("POST", f"{PATH}/evaluate").json()["detail"]
    gate.eval.tenant.files.all().delete()
    refused = owner("POST", f"{PATH}/evaluate").json()
    assert "start one with the model support@2" in refused["detail"]
    assert not EvalRun.objects.filter(model="support@2").exists()


def test_a_split_that_has_ended_starts_nothing(
    owner: Api, tenant: Tenant, second: AdapterVersion, gate: PromotionGate
) -> None:
    owner("POST", PATH, PLAN)
    split, caller = Split.objects.get(), Caller(tenant, key=make_key(tenant)[0])
    split.end(SplitState.STOPPED, "Stopped.")
    with pytest.raises(SplitEnded):
        required.evaluate(split, caller, None)


def test_deleting_the_run_or_its_eval_leaves_the_split(
    owner: Api, second: AdapterVersion, gate: PromotionGate
) -> None:
    owner("POST", PATH, PLAN)
    split = Split.objects.select_related("eval_run").get()
    assert split.eval_run is not None
    split.eval_run.delete()
    assert judged(split).eval_run_id is None and split.state == SplitState.RUNNING
