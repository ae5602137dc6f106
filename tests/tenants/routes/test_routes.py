"""A route from its creation over its fit, which a child process computes, to its end."""

from __future__ import annotations

from itertools import islice
from random import Random
from typing import Any

import msgspec
import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone
from procrastinate.contrib.django.models import ProcrastinateJob

from inference.routes import RouteFit
from tenants.adapters.uploads.keeping import check_name
from tenants.adapters.uploads.refusals import UploadRefused
from tenants.batches.jobs import _unknown_models
from tenants.errors import RouteBeingFitted, RouteNotGaining, TooManyRoutes
from tenants.models import (
    AdapterVersion,
    AuditEntry,
    BaseModel,
    Eval,
    EvalItem,
    EvalRun,
    Price,
    Route,
    Tenant,
)
from tenants.models.routes import FIT_TIME, MAX_ROUTES
from tenants.routes import jobs
from tests.labs.routes.simulation import RouteScenario, questions
from tests.tenants.callers import Api, with_key
from tests.tenants.making import (
    make_base,
    make_batch,
    make_eval,
    make_eval_run,
    make_key,
    make_tenant,
)

pytestmark = pytest.mark.django_db

CLEAR = RouteScenario("clear", small=(0.98, 0.1), large=(0.97, 0.95), rows=500)
USELESS = RouteScenario("useless", small=(0.7, 0.7), large=(0.95, 0.95), told=0.0, rows=300)
SOURCE = {
    "type": "completions",
    "model": "x",
    "source": {"type": "file_id", "id": "file-x"},
    "input_messages": {
        "type": "template",
        "template": [{"role": "user", "content": "{{ item.question }}"}],
    },
}


@pytest.fixture
def eval(tenant: Tenant) -> Eval:
    return make_eval(tenant, "Questions")


@pytest.fixture
def ask(tenant: Tenant) -> Api:
    return with_key(tenant, "adapters:write")[0]


@pytest.fixture
def route(live: AdapterVersion) -> Route:
    """Between an adapter and the base model, which costs ten times as much."""
    start = {"starts_at": timezone.now(), "cached_prompt": 0}
    Price.objects.create(adapter=live.adapter, prompt=1_000_000, output=1_000_000, **start)
    base = BaseModel.objects.get(name="base")
    Price.objects.create(base_model=base, prompt=10_000_000, output=10_000_000, **start)
    return Route.objects.add(
        live.adapter.tenant, None, name="auto", options=["support", "base"], margin=0.05
    )


def results(eval: Eval, scenario: RouteScenario, **fields: Any) -> list[EvalRun]:
    """A completed run on each option, with the generated questions as its rows."""
    rows = list(islice(questions(scenario, Random(7)), scenario.rows))
    key = make_key(eval.tenant, "inference")[0]
    runs = list[EvalRun]()
    for at, model in enumerate(("support", "base")):
        passed = [row.passed[at] for row in rows]
        given = {"model": model, "source": SOURCE} | fields
        runs.append(make_eval_run(eval, key, passed, **given))
        items = list(runs[-1].items.all())
        for item, row in zip(items, rows, strict=True):
            body = msgspec.json.decode(item.body)
            body["item"] = {"question": row.text}
            usage = {"prompt_tokens": row.cost[0], "completion_tokens": 20}
            body["sample"] = {"output_text": "x", "usage": usage}
            item.body = msgspec.json.encode(body).decode()
        runs[-1].items.bulk_update(items, ["body"])
    return runs


def work() -> None:
    """Run the fit that was asked for."""
    job = ProcrastinateJob.objects.filter(task_name="fit_route").latest("id")
    jobs.fit_route(**job.args)


def test_a_route_that_gains_is_turned_on(route: Route, eval: Eval, ask: Api) -> None:
    runs = results(eval, CLEAR)
    begun = ask("POST", "routes/auto/fit", {"eval": eval.pk})
    assert begun.status_code == 202 and begun.json()["is_being_fitted"] is True
    again = ask("POST", "routes/auto/fit", {"eval": eval.pk})
    assert (again.status_code, again.json()["code"]) == (409, "route_being_fitted")
    work()
    found = ask("GET", "routes/auto").json()
    assert (found["is_on"], found["gains"], found["is_being_fitted"]) == (True, True, False)
    assert found["reason"].startswith("It costs ") and "less than base alone" in found["reason"]
    report = found["report"]
    assert [one["model"] for one in report["options"]] == ["support", "base"]
    assert [one["run"] for one in report["options"]] == [run.pk for run in runs]
    assert report["cost_difference"]["high"].startswith("-0.000")
    assert report["quality_difference"]["low"] >= -0.05
    assert report["control_difference"]["low"] > 0 and report["choice_ms"] < 5
    route.refresh_from_db()
    fit = RouteFit.of(bytes(route.packed), route.threshold)
    easy, hard = "Where is my parcel, by email?", "Compare both contracts and say, in Berlin?"
    assert [fit.choose(text, len(text), [0, 1]) for text in (easy, hard)] == [0, 1]
    logged = AuditEntry.objects.filter(kind="route").order_by("pk")
    assert [one.action for one in logged] == ["created", "changed"]
    after = logged[1].after or {}
    assert "packed" not in after and after["is_on"] is True
    assert ask("POST", "routes/auto/off").json()["is_on"] is False
    assert ask("POST", "routes/auto/on").json()["is_on"] is True
    assert ask("DELETE", "routes/auto").status_code == 204


def test_a_cascade_is_fitted_by_how_sure_answers_are(route: Route, eval: Eval, ask: Api) -> None:
    body = {"name": "careful", "options": ["support", "base"], "method": "cascade", "margin": 0.05}
    assert ask("POST", "routes", body).json()["method"] == "cascade"
    results(eval, CLEAR)
    refused = ask("POST", "routes/careful/fit", {"eval": eval.pk})
    assert "has no criterion of the type logprob" in refused.json()["errors"][0]["message"]
    Eval.objects.update(criteria=[*eval.criteria, {"type": "logprob", "name": "sure"}])
    for item in (items := list(EvalItem.objects.all())):
        result = msgspec.json.decode(item.body)
        score = -0.1 if item.status == "passed" else -2.0
        result["grades"].append({"name": "sure", "type": "logprob", "score": score})
        item.body = msgspec.json.encode(result).decode()
    EvalItem.objects.bulk_update(items, ["body"])
    assert ask("POST", "routes/careful/fit", {"eval": eval.pk}).status_code == 202
    work()
    found = ask("GET", "routes/careful").json()
    assert (found["is_on"], found["report"]["threshold"]) == (True, -0.1), found["reason"]
    assert found["report"]["choice_ms"] == 0


def test_a_useless_route_stays_off(route: Route, eval: Eval, ask: Api) -> None:
    results(eval, USELESS)
    jobs.fit_later(route, eval)
    work()
    found = ask("GET", "routes/auto").json()
    assert (found["is_on"], found["gains"]) == (False, False) and found["report"] is not None
    assert found["answers_if_off"] == "base"
    refused = ask("POST", "routes/auto/on")
    assert (refused.status_code, refused.json()["code"]) == (409, "route_not_gaining")
    with pytest.raises(IntegrityError), transaction.atomic():
        Route.objects.update(is_on=True)


def test_a_fit_that_fails_leaves_the_last_one(route: Route, eval: Eval) -> None:
    results(eval, CLEAR)
    jobs.fit_later(route, eval)
    work()
    few = make_eval(route.tenant, "Few")
    results(few, RouteScenario("few", rows=20))
    jobs.fit_later(route, few)
    work()
    route.refresh_from_db()
    assert route.is_on and route.fit == 1 and route.fitting_since is None
    assert route.reason.startswith("It was not fitted: 20 rows can be used")


def test_a_fit_of_an_eval_or_a_route_that_is_gone(route: Route, eval: Eval) -> None:
    results(eval, RouteScenario("few", rows=2))
    jobs.fit_later(route, eval)
    eval.delete()
    work()
    route.refresh_from_db()
    assert route.reason == "It was not fitted: its eval was deleted."
    route.delete()
    work()


def test_results_that_can_not_be_read(route: Route, eval: Eval) -> None:
    results(eval, RouteScenario("few", rows=2))[0].items.update(body="[]")
    jobs.fit_later(route, eval)
    work()
    route.refresh_from_db()
    assert route.reason == "It was not fitted: the results of the runs could not be read."


def test_a_fit_whose_worker_died_can_be_asked_for_again(route: Route, eval: Eval) -> None:
    route.begin_fit(eval)
    with pytest.raises(RouteBeingFitted):
        route.begin_fit(eval)
    Route.objects.update(fitting_since=timezone.now() - FIT_TIME)
    first = Route.objects.get()
    route.begin_fit(eval)
    assert not first.end_fit("late"), "its fit no longer counts"
    assert route.end_fit("in time") and Route.objects.get().reason == "in time"


def test_a_fit_that_lost_its_job_is_queued_again(route: Route, eval: Eval) -> None:
    results(eval, CLEAR)
    jobs.fit_later(route, eval)
    queued = ProcrastinateJob.objects.filter(task_name="fit_route")
    jobs.tend_routes(0)
    assert queued.count() == 1, "it is still queued"
    queued.delete()
    jobs.tend_routes(0)
    work()
    assert Route.objects.get().fit == 1
    jobs.tend_routes(0)
    assert queued.count() == 1, "it has ended"


def test_what_a_fit_needs(route: Route, eval: Eval, ask: Api) -> None:
    def refused() -> str:
        answer = ask("POST", "routes/auto/fit", {"eval": eval.pk})
        assert answer.status_code == 400
        message: str = answer.json()["errors"][0]["message"]
        return message

    assert refused() == (
        "The eval Questions has no completed run with the model support: start one."
    )
    first, _ = results(eval, RouteScenario("few", rows=2))
    other = {**SOURCE, "input_messages": {"type": "item_reference", "item_reference": "item.x"}}
    EvalRun.objects.filter(pk=first.pk).update(source=other)
    assert refused() == "The runs have different prompts: start them with the same one."
    Price.objects.update(prompt=0, output=0)
    assert refused() == "All options are free: set prices, or there is nothing to save."
    foreign = make_eval(make_tenant("globex"))
    answer = ask("POST", "routes/auto/fit", {"eval": foreign.pk})
    assert answer.status_code == 400 and "There is no eval" in answer.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "base"}, "A base model already has this name."),
        ({"name": "support"}, "An adapter already has this name."),
        ({"name": "auto"}, "Route with this Tenant and Name already exists."),
        ({"name": "Not A Name"}, "Lower-case letters"),
        ({"options": ["base", "base"]}, "“base” is there twice."),
        ({"options": ["base", "nothing"]}, "There is no base model or ready adapter “nothing”."),
        ({"options": ["base", "support@9"]}, "“support@9”"),
        ({"options": ["base", "auto"]}, "“auto”"),
        ({"options": ["base", "a\0b"]}, "ull characters"),
        ({"options": ["base"]}, "at least 2"),
        ({"options": ["base", *(f"support@{n}" for n in range(4))]}, "no more than 4"),
        ({"margin": 0.5}, "0.2"),
        ({"method": "oracle"}, "not a valid choice"),
        (
            {"method": "cascade", "options": ["base", "support", "support@1"]},
            "A cascade has 2 options, and not 3.",
        ),
        ({"is_on": True}, "read-only"),
    ],
)
def test_a_route_that_can_not_be(route: Route, ask: Api, fields: dict[str, Any], said: str) -> None:
    answer = ask("POST", "routes", {"name": "other", "options": ["base", "support"]} | fields)
    assert answer.status_code == 400 and said in answer.json()["errors"][0]["message"], answer.text
    assert Route.objects.count() == 1


def test_options_may_be_versions_by_number_alias_and_digest(
    route: Route, live: AdapterVersion, ask: Api
) -> None:
    for number, pin in enumerate(("1", "live", live.digest, live.digest[:8])):
        options = ["base", f"support@{pin}"]
        assert ask("POST", "routes", {"name": f"r{number}", "options": options}).status_code == 201


def test_an_adapter_can_not_have_the_name_of_a_route(route: Route) -> None:
    with pytest.raises(UploadRefused, match="A route already has this name"):
        check_name(route.tenant, "auto")
    check_name(make_tenant("globex"), "auto")


def test_another_tenant_sees_no_route(route: Route) -> None:
    other = make_tenant("globex")
    ask, _ = with_key(other, "adapters:write")
    assert ask("GET", "routes").json()["results"] == []
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/on"), ("POST", "/off")):
        assert ask(method, f"routes/auto{path}").status_code == 404
    make_base("other")
    foreign = ask("POST", "routes", {"name": "auto", "options": ["base", "support"]})
    assert foreign.status_code == 400  # the adapter is not its own
    assert ask("POST", "routes", {"name": "auto", "options": ["base", "other"]}).status_code == 201


def test_a_batch_may_name_a_route_of_its_tenant(route: Route) -> None:
    def unknown(tenant: Tenant) -> list[int]:
        batch = make_batch(make_key(tenant, "inference")[0])
        return [one["line"] for one in _unknown_models(batch, {"auto": 1, "nothing": 2})]

    assert unknown(route.tenant) == [2]
    assert unknown(make_tenant("globex")) == [1, 2]


def test_a_tenant_has_at_most_so_many(route: Route) -> None:
    for number in range(MAX_ROUTES - 1):
        Route.objects.create(tenant=route.tenant, name=f"r{number}", options=["base", "support"])
    with pytest.raises(TooManyRoutes):
        Route.objects.add(route.tenant, None, name="one-more", options=["base", "support"])


def test_a_route_without_a_gain_is_not_turned_on(route: Route) -> None:
    with pytest.raises(RouteNotGaining):
        route.turn_on()


def test_an_options_own_price_takes_precedence(route: Route) -> None:
    assert route.prices() == [(1_000_000, 1_000_000), (10_000_000, 10_000_000)]
    Price.objects.filter(adapter__isnull=False).delete()
    assert route.prices() == [(10_000_000, 10_000_000)] * 2
    Price.objects.all().delete()
    with pytest.raises(ValidationError, match="All options are free"):
        route.prices()
