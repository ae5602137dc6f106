"""The pages of evals: permissions, contents, cancelling, comparing."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from frontend.views.evals.wording import MAX_SHOWN
from tenants.models import ApiKey, AuditEntry, Eval, EvalItem, EvalRun, Tenant
from tests.frontend.clients import client_of
from tests.tenants.making import (
    SAME,
    make_batch,
    make_eval,
    make_eval_run,
    make_key,
    make_scored_run,
    make_tenant,
)

MODEL_CRITERIA = [
    {"type": "label_model", "name": "polite", "model": "base", "labels": ["polite", "rude"],
     "passing_labels": ["polite"], "input": [{"role": "user", "content": "Is it polite?"}]},
    {"type": "score_model", "name": "good", "model": "base", "range": [0, 10],
     "input": [{"role": "user", "content": "Judge."}]},
    {"type": "text_similarity", "name": "near", "input": "a", "reference": "b",
     "evaluation_metric": "rouge_l", "pass_threshold": 0.5},
    {"type": "json_schema", "name": "object", "schema": {"type": "object"}},
    {"type": "logprob", "name": "sure", "pass_threshold": -1.5},
]  # fmt: skip
HOSTILE = "<script>alert(1)</script>\u202e"


@pytest.fixture
def eval(tenant: Tenant) -> Eval:
    return make_eval(tenant)


@pytest.fixture
def run(eval: Eval, key: ApiKey) -> EvalRun:
    return make_eval_run(eval, key, [True, False, None, True])


@pytest.fixture
def developer(tenant: Tenant) -> Client:
    return client_of(tenant, "developer")


def at(eval: Eval, *rest: str) -> str:
    return "/".join(["/t", eval.tenant.slug, "evals", eval.pk, *rest])


def of_run(run: EvalRun, *rest: str) -> str:
    return at(run.eval, "runs", run.pk, *rest)


def compared(a: EvalRun, b: EvalRun, more: str = "") -> str:
    return f"{at(a.eval, 'compare')}?a={a.pk}&b={b.pk}{more}"


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.text


def test_who_sees_evals(tenant: Tenant, eval: Eval, run: EvalRun, key: ApiKey) -> None:
    other = make_eval_run(eval, key, [True])
    paths = [f"/t/{tenant.slug}/evals", at(eval), of_run(run), compared(run, other)]
    expected = {"owner": 200, "developer": 200, "operator": 200, "viewer": 403, "outsider": 404}
    for role, status in expected.items():
        client = client_of(tenant, role)
        assert [client.get(path).status_code for path in paths] == [status] * 4
        if status != 200:
            assert client.post(of_run(run, "cancel")).status_code == status


def test_another_tenants_evals_are_not_found(tenant: Tenant, run: EvalRun) -> None:
    stranger = make_tenant("other")
    theirs = make_eval_run(make_eval(stranger), make_key(stranger)[0], [True])
    client = client_of(tenant, "owner")
    assert theirs.eval_id not in text(client, f"/t/{tenant.slug}/evals")
    own = at(run.eval)
    for path in (at(theirs.eval), of_run(theirs), at(theirs.eval, "compare")):
        assert client.get(path.replace("/other/", "/acme/")).status_code == 404
    assert client.get(f"{own}/runs/{theirs.pk}").status_code == 404
    assert client.post(f"{own}/runs/{theirs.pk}/cancel").status_code == 404
    answer = client.get(f"{own}/compare?a={run.pk}&b={theirs.pk}")
    assert answer.headers["Location"] == own
    assert client.get(f"{own}/runs/%00").status_code == 404


def test_an_empty_list_says_how_to_begin(tenant: Tenant, developer: Client) -> None:
    page = text(developer, f"/t/{tenant.slug}/evals")
    assert "client.evals.create" in page and 'href="/documentation/evals"' in page


def test_the_list_shows_each_evals_last_run(
    tenant: Tenant, eval: Eval, key: ApiKey, developer: Client
) -> None:
    make_eval_run(eval, key, [True], created_at=timezone.now() - timedelta(days=1))
    last = make_eval_run(eval, key, [True, False, False, False])
    unused = make_eval(tenant, "Unused", criteria=[SAME, *MODEL_CRITERIA])
    page = developer.get(f"/t/{tenant.slug}/evals")
    assert page.context["rows"] == [
        (unused, ["same", "polite", "good", "near", "object", "sure"], None),
        (eval, ["same"], last),
    ]
    assert "25%" in page.text and "none yet" in page.text and "and 3 more" in page.text
    found = developer.get(f"/t/{tenant.slug}/evals?q=sum").context["rows"]
    assert [row for row, _, _ in found] == [eval]
    assert "No eval matches" in text(developer, f"/t/{tenant.slug}/evals?q=nothing")


def test_the_list_comes_in_pages(tenant: Tenant, developer: Client) -> None:
    now = timezone.now()
    made = [make_eval(tenant, created_at=now - timedelta(minutes=n // 4)) for n in range(52)]
    made.sort(key=lambda one: (one.created_at, one.pk), reverse=True)
    first = developer.get(f"/t/{tenant.slug}/evals").context["rows"]
    rest = developer.get(f"/t/{tenant.slug}/evals?after={made[49].pk}").context["rows"]
    assert [row.pk for row, _, _ in (*first, *rest)] == [one.pk for one in made]


def test_an_eval_shows_its_criteria_in_words(tenant: Tenant, developer: Client) -> None:
    eval = make_eval(tenant, criteria=[SAME, *MODEL_CRITERIA])
    words = [one.words for one in developer.get(at(eval)).context["criteria"]]
    assert words == [
        "{{ sample.output_text }} equals {{ item.answer }}",
        "base chooses one of the labels polite, rude; passing are: polite",
        "base gives at least 5, from 0 to 10",
        "The similarity (rouge_l) of a with b is at least 0.5",
        "{{sample.output_text}} is JSON that follows the schema",
        "The mean log-probability of the answer's tokens is at least -1.5",
    ]
    assert "Asked: Is it polite?" in text(developer, at(eval))


def test_two_completed_runs_can_be_chosen(eval: Eval, key: ApiKey, developer: Client) -> None:
    earlier = make_eval_run(eval, key, [True], name="first")
    assert "Compare two runs" not in text(developer, at(eval))
    later = make_eval_run(eval, key, [True], name="second")
    unfinished = make_eval_run(eval, key, status="in_progress", ended_at=None)
    page = developer.get(at(eval))
    assert page.context["rows"] == [unfinished, later, earlier]
    assert f'<option value="{earlier.pk}" selected>' in page.text
    assert f'<option value="{unfinished.pk}"' not in page.text
    for a, b in ((earlier, unfinished), (earlier, earlier)):
        answer = developer.get(compared(a, b), follow=True)
        assert "Choose two different completed runs" in answer.text


def test_a_run_shows_failures_first(run: EvalRun, developer: Client) -> None:
    page = developer.get(of_run(run))
    assert [row.number for row in page.context["rows"]] == [3, 2, 1, 4]
    assert "50% of 4 rows" in page.text and "The engine was lost." in page.text
    assert "There is no `sample.output_text`." in page.text and "310" in page.text
    assert "Cancel run" not in page.text


def test_rows_come_in_pages(eval: Eval, key: ApiKey, developer: Client) -> None:
    run = make_eval_run(eval, key, [True] * 20 + [False] * 20)
    first = developer.get(of_run(run))
    last = first.context["last"].number
    rest = developer.get(of_run(run, f"?after={last}").replace("/?", "?"))
    numbers = [row.number for page in (first, rest) for row in page.context["rows"]]
    assert numbers == [*range(21, 41), *range(1, 21)]
    for odd in ("-1", "x", "9" * 18):
        assert developer.get(f"{of_run(run)}?after={odd}").status_code == 200


def test_an_unfinished_run_refreshes_and_is_cancelled_once(
    eval: Eval, key: ApiKey, developer: Client
) -> None:
    batch = make_batch(key, completed=3)
    run = make_eval_run(eval, key, status="in_progress", ended_at=None, samples=batch)
    page = developer.get(of_run(run))
    assert "Cancel this run?" in page.text and "3 of 10" in page.text and batch.pk in page.text
    seen = {"If-None-Match": f'"{page.context["fingerprint"]}"'}
    assert developer.get(of_run(run), headers=seen).status_code == 304
    type(batch).objects.filter(pk=batch.pk).update(completed=4)
    assert developer.get(of_run(run), headers=seen).status_code == 200
    assert developer.post(of_run(run, "cancel")).headers["Location"] == of_run(run)
    run.refresh_from_db()
    batch.refresh_from_db()
    assert (run.status, batch.status) == ("canceled", "cancelling")
    assert "Cancel this run?" not in text(developer, of_run(run))
    assert "had already ended" in developer.post(of_run(run, "cancel"), follow=True).text
    assert AuditEntry.objects.filter(action="cancelled eval run", name=run.pk).count() == 1


def test_a_run_that_failed_says_why(eval: Eval, key: ApiKey, developer: Client) -> None:
    error = {"code": "invalid_rows", "message": "Line 3: no <b>."}
    run = make_eval_run(eval, key, status="failed", error=error)
    assert "Line 3: no &lt;b&gt;." in text(developer, of_run(run))


def test_hostile_texts_are_escaped_and_cut(tenant: Tenant, key: ApiKey, developer: Client) -> None:
    eval = make_eval(tenant, HOSTILE, criteria=[SAME | {"name": HOSTILE, "input": HOSTILE * 99}])
    run = make_eval_run(eval, key, [None], name=HOSTILE, model=HOSTILE)
    other = make_eval_run(eval, key, [True], usage={HOSTILE: {"prompt_tokens": 1}})
    item = EvalItem.objects.get(run=run)
    body = json.loads(item.body)
    body["item"] = {HOSTILE * 999: HOSTILE * 40_000, **{f"k{n}": {"x": [n]} for n in range(99)}}
    body["sample"] = {"output_text": HOSTILE * 40_000, "error": HOSTILE * 999}
    body["grades"][0]["error"] = HOSTILE * 999
    EvalItem.objects.filter(pk=item.pk).update(body=json.dumps(body))
    for path in (f"/t/{tenant.slug}/evals", at(eval), of_run(run), compared(other, run)):
        page = text(developer, path)
        assert "<script>alert" not in page and "&lt;script&gt;alert" in page
        assert len(page) < 60_000
    [row] = developer.get(of_run(run)).context["rows"]
    assert sum(len(value) for _, value in row.item) <= MAX_SHOWN + 1
    assert len(row.answer) == MAX_SHOWN + 1


def test_a_row_that_is_nested_very_deeply_does_no_harm(run: EvalRun, developer: Client) -> None:
    nested = '{"x":' * 2000 + "1" + "}" * 2000
    item = run.items.earliest("number")
    body = item.body.replace('"item":{', f'"item":{{"deep":{nested},')
    EvalItem.objects.filter(pk=item.pk).update(body=body)
    assert "The row is nested too deeply." in text(developer, of_run(run))


def test_a_page_has_fewer_rows_if_there_are_many_criteria(
    tenant: Tenant, key: ApiKey, developer: Client
) -> None:
    run = make_eval_run(make_eval(tenant, criteria=[SAME] * 32), key, [False] * 20)
    page = developer.get(of_run(run))
    assert len(page.context["rows"]) == 9 and len(page.content) < 150_000


def test_two_runs_are_compared_by_row(eval: Eval, key: ApiKey, developer: Client) -> None:
    a = make_eval_run(eval, key, [True, True, False, None, True, True])
    b = make_eval_run(eval, key, [True, False, True, True, True])
    page = developer.get(compared(a, b))
    shown = [(row["change"].number, row["change"].kind) for row in page.context["rows"]]
    assert shown == [
        (2, "regression"), (3, "improvement"), (4, "improvement"),
        (1, "unchanged"), (5, "unchanged"),
    ]  # fmt: skip
    [(_, found)] = page.context["overall"]
    assert (page.context["common"], found.a, found.b) == (5, 0.6, 0.8)
    assert "+20.0" in page.text and "of 6 and 5" in page.text
    assert "No difference can be told from these rows." in page.text
    assert "interval is too narrow" in page.text
    [criterion] = page.context["criteria"]
    assert criterion["differences"] == [("before", found)] and not page.context["means"]


def test_a_difference_that_can_be_told_is_told(eval: Eval, key: ApiKey, developer: Client) -> None:
    a, b = (make_eval_run(eval, key, [good] * 40 + [True] * 20) for good in (False, True))
    page = developer.get(compared(a, b))
    assert "More rows passed after than before" in page.text and "too narrow" not in page.text
    assert "Fewer rows passed after than before" in text(developer, compared(b, a))
    rest = developer.get(compared(a, b, f"&after={page.context['last']}"))
    assert [row["change"].number for row in rest.context["rows"]] == [*range(26, 51)]
    assert "No difference can be told" in text(
        developer, compared(b, make_eval_run(eval, key, [True] * 60))
    )


def test_runs_without_common_rows(eval: Eval, key: ApiKey, developer: Client) -> None:
    a, b = make_eval_run(eval, key, [True]), make_eval_run(eval, key)
    assert "no row number in common" in text(developer, compared(a, b))


NEAR = MODEL_CRITERIA[2]


def test_rows_with_scores_are_sorted_by_what_was_lost(
    tenant: Tenant, key: ApiKey, developer: Client
) -> None:
    eval = make_eval(tenant, criteria=[NEAR])
    a = make_scored_run(eval, key, [0.9, 0.6, 0.2, None])
    b = make_scored_run(eval, key, [0.8, 0.1, 0.7, 0.4])
    page = developer.get(compared(a, b))
    changes = [row["change"] for row in page.context["rows"]]
    assert [(one.number, one.kind) for one in changes] == [
        (2, "regression"), (1, "unchanged"), (4, "unchanged"), (3, "improvement"),
    ]  # fmt: skip
    assert [round(one.gained, 6) for one in changes] == [-0.5, -0.1, 0.4, 0.5]
    [[(_, mean)]] = [one["differences"] for one in page.context["means"]]
    assert (round(mean.a, 4), round(mean.b, 4)) == (0.5667, 0.5333), "of rows that both scored"
    assert mean.low < mean.value < mean.high
    for said in (
        "Mean scores",
        "\u22120.500",
        "0.567",
        "What about order 2?",
        "Order 2 left today.",
    ):
        assert said in page.text
    assert "You answer customers." not in page.text, "of a prompt the last turn is shown"


def test_three_runs_are_compared_with_the_best_other(
    tenant: Tenant,
    key: ApiKey,
    developer: Client,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    eval = make_eval(tenant, criteria=[NEAR])
    base = make_scored_run(eval, key, [0.1, 0.9, 0.3], name="base model")
    before = make_scored_run(eval, key, [0.7, 0.2, 0.3], name="version before")
    new = make_scored_run(eval, key, [0.6, 0.6, 0.9], name=HOSTILE)
    with django_assert_max_num_queries(12):
        page = developer.get(compared(base, new, f"&c={before.pk}"))
    assert "Three runs compared" in page.text and "<script>alert" not in page.text
    changes = [row["change"] for row in page.context["rows"]]
    assert [(one.number, one.kind, round(one.gained, 6)) for one in changes] == [
        (2, "unchanged", -0.3), (1, "unchanged", -0.1), (3, "improvement", 0.6),
    ]  # fmt: skip
    assert [title for title, _ in page.context["overall"]] == ["base model", "version before"]
    [means] = [one["differences"] for one in page.context["means"]]
    assert [(title, round(one.value, 4)) for title, one in means] == [
        ("base model", 0.2667), ("version before", 0.3),
    ]  # fmt: skip
    assert [len(row["results"]) for row in page.context["rows"]] == [3, 3, 3]
    for odd in (f"&c={base.pk}", "&c=evalrun_0"):
        answer = developer.get(compared(base, new, odd), follow=True)
        assert "Choose two different completed runs" in answer.text
