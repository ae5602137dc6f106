"""Saved prompts and prompt sets of the playground, votes, and the models named in its address."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from tenants.models import PromptSet, SavedPrompt, SetRun, Tenant
from tenants.models.saved import votes
from tenants.models.saved.votes import Run, Score, scores
from tests.frontend.clients import address, client_of, user_of
from tests.tenants.making import make_adapter, make_version


def test_each_model_in_the_address_has_a_pane(tenant: Tenant, admin: Client) -> None:
    where = address(tenant, "playground")
    page = admin.get(f"{where}?model=support@1&model=support@2&model=")
    assert page.context["asked"] == [{"model": "support@1"}, {"model": "support@2"}]
    assert page.context["model"] == "support@1"
    assert admin.get(f"{where}?model=support").context["asked"] is None
    many = admin.get(where + "?" + "&".join(f"model=m{n}" for n in range(9)))
    assert len(many.context["asked"]) == 4


def test_prompts_are_ones_own_or_shared(tenant: Tenant) -> None:
    owner, other = client_of(tenant, "owner"), client_of(tenant, "developer")
    where = address(tenant, "playground/prompts")

    def names(client: Client) -> list[tuple[str, str]]:
        prompts = client.get(address(tenant, "playground")).context["prompts"]
        return [(one["name"], one["by"]) for one in prompts]

    hello = {"name": "Hello", "text": "Dear {{ name }}", "system": "Be kind."}
    made = owner.post(where, hello)
    assert made.status_code == 200
    read = f"{where}/{made.json()['id']}"
    assert owner.get(read).json()["text"] == "Dear {{ name }}"
    assert other.get(read).status_code == 404
    assert "Dear" not in owner.get(address(tenant, "playground")).text, "the page has names alone"
    owner.post(where, {"name": "Ours", "text": "x", "shared": "on"})
    assert names(owner) == [("Hello", ""), ("Ours", "")]
    assert names(other) == [("Ours", user_of(owner).username)]
    shared = SavedPrompt.objects.get(shared=True).pk
    assert other.get(f"{where}/{shared}").json()["text"] == "x"
    assert client_of(tenant, "operator").get(f"{where}/{shared}").status_code == 404
    assert owner.post(where, hello | {"text": "Hi"}).json()["id"] == made.json()["id"]
    for wrong in ({"name": ""}, {"text": ""}, {"text": "x" * 20_001}, {"name": "x" * 81}):
        assert owner.post(where, hello | wrong).status_code == 422
    drop = f"{where}/{made.json()['id']}/delete"
    assert other.post(drop).status_code == 404 and owner.post(drop).status_code == 200
    assert names(owner) == [("Ours", "")]
    assert client_of(tenant, "outsider").post(where, hello).status_code == 404
    assert client_of(tenant, "operator").post(where, hello).status_code == 403


def test_prompts_are_limited(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SavedPrompt, "most", 2)
    owner, where = client_of(tenant, "owner"), address(tenant, "playground/prompts")
    sent = [owner.post(where, {"name": f"p{n}", "text": "x"}).status_code for n in (1, 2, 3, 1)]
    assert sent == [200, 200, 409, 200]


def test_a_prompt_set_is_ones_own_or_shared(tenant: Tenant) -> None:
    owner, other = client_of(tenant, "owner"), client_of(tenant, "developer")
    where = address(tenant, "playground/sets")

    def names(client: Client) -> list[tuple[str, int]]:
        sets = client.get(address(tenant, "playground")).context["sets"]
        return [(one["name"], one["count"]) for one in sets]

    given = {"name": "Refunds", "prompts": json.dumps([" Hello ", "", "Bye"])}
    made = owner.post(where, given)
    assert made.status_code == 200 and made.json()["count"] == 2
    assert names(owner) == [("Refunds", 2)] and names(other) == []
    one = f"{where}/{made.json()['id']}"
    assert owner.get(one).json()["prompts"] == ["Hello", "Bye"]
    assert other.get(one).status_code == 404
    owner.post(where, given | {"shared": "on"})
    assert other.get(one).json()["by"] == user_of(owner).username
    assert names(other) == [("Refunds", 2)]
    assert client_of(tenant, "operator").get(one).status_code == 404
    assert other.post(f"{one}/delete").status_code == 404
    assert owner.post(f"{one}/delete").status_code == 200 and names(other) == []


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ("{}", "not a list"), ("[1]", "not a list"), ("[", "not a list"),
        ('[" "]', "1 to 50 prompts"),
        (json.dumps(["x"] * 51), "has 51"), (json.dumps(["x" * 20_001]), "Prompt 1 has more than"),
    ],
)  # fmt: skip
def test_an_invalid_prompt_set_is_refused(tenant: Tenant, prompts: str, said: str) -> None:
    owner = client_of(tenant, "owner")
    sent = owner.post(address(tenant, "playground/sets"), {"name": "x", "prompts": prompts})
    assert sent.status_code == 422 and said in sent.json()["message"]
    assert not PromptSet.objects.exists()


@pytest.fixture
def owner(tenant: Tenant) -> Client:
    return client_of(tenant, "owner")


@pytest.fixture
def refunds(tenant: Tenant, owner: Client) -> PromptSet:
    """A set of two prompts that its owner shares."""
    member = tenant.memberships.get(user=user_of(owner))
    return PromptSet.objects.keep(member, "Refunds", prompts=["a", "b"], shared=True)


def ballot(**given: Any) -> dict[str, str]:
    """A run's votes as the page sends them."""
    told = {"models": ["support@1", "support@2"], "choices": ["B", "tie"], **given}
    return {"run": str(told.pop("run", uuid4()))} | {k: json.dumps(v) for k, v in told.items()}


def test_votes_are_kept_and_added_up_by_version(
    tenant: Tenant, owner: Client, refunds: PromptSet
) -> None:
    other = client_of(tenant, "developer")
    one = address(tenant, f"playground/sets/{refunds.pk}")
    first = ballot()
    assert owner.post(f"{one}/votes", first | ballot(run=first["run"], choices=["A", ""])).json()
    said = owner.post(f"{one}/votes", first).json()["scores"]  # the same run, continued
    assert [(s["model"], s["wins"], s["ties"], s["voted"]) for s in said] == [
        ("support@2", 1, 1, 2), ("support@1", 0, 1, 2),
    ]  # fmt: skip
    other.post(f"{one}/votes", ballot(choices=["B", ""]))
    seen = owner.get(one).json()["scores"]
    assert seen[0] == {"model": "support@2", "wins": 2, "ties": 1, "voted": 3, "runs": 2}
    assert client_of(tenant, "outsider").post(f"{one}/votes", first).status_code == 404
    assert client_of(tenant, "operator").post(f"{one}/votes", first).status_code == 404
    PromptSet.objects.filter(pk=refunds.pk).update(shared=False)
    assert other.post(f"{one}/votes", ballot()).status_code == 404
    assert SetRun.objects.count() == 2
    owner.post(f"{one}/delete")
    assert not SetRun.objects.exists()


def test_votes_on_other_prompts_go(tenant: Tenant, owner: Client, refunds: PromptSet) -> None:
    sets = address(tenant, "playground/sets")
    owner.post(f"{sets}/{refunds.pk}/votes", ballot())
    given = {"name": "Refunds", "prompts": json.dumps(["a", "b"])}
    owner.post(sets, given)
    assert SetRun.objects.exists()
    owner.post(sets, given | {"prompts": json.dumps(["a", "c"])})
    assert PromptSet.objects.get().pk == refunds.pk and not SetRun.objects.exists()


def test_the_runs_of_a_set_are_bounded(
    tenant: Tenant, owner: Client, refunds: PromptSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(votes, "MAX_RUNS", 2)
    owner, where = (
        client_of(tenant, "owner"),
        address(tenant, f"playground/sets/{refunds.pk}/votes"),
    )
    keys = [uuid4() for _ in range(3)]
    for key in keys:
        owner.post(where, ballot(run=key))
    assert set(SetRun.objects.values_list("key", flat=True)) == set(keys[1:])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"models": ["a"]}, "2 to 4 models"), ({"models": ["a"] * 5}, "2 to 4 models"),
        ({"models": ["a", ""]}, "1 to 200"), ({"models": ["a", "x" * 201]}, "1 to 200"),
        ({"models": ["a", "\0"]}, "1 to 200"), ({"models": {}}, "2 to 4 models"),
        ({"choices": ["E", ""]}, "pane's letter"), ({"choices": ["A"]}, "2 prompts"),
        ({"choices": 7}, "pane's letter"), ({"run": "me"}, "valid UUID"),
    ],
)  # fmt: skip
def test_an_invalid_vote_is_refused(
    tenant: Tenant, owner: Client, refunds: PromptSet, wrong: dict[str, Any], said: str
) -> None:
    where = address(tenant, f"playground/sets/{refunds.pk}/votes")
    sent = owner.post(where, ballot(**wrong))
    assert sent.status_code == 422 and said in sent.json()["message"]
    assert not SetRun.objects.exists()


def test_a_set_runs_over_the_versions_that_names_mean_now(
    tenant: Tenant, owner: Client, refunds: PromptSet
) -> None:
    adapter = make_adapter(tenant)
    adapter.promote(make_version(adapter), "canary")
    adapter.promote(make_version(adapter))
    one = address(tenant, f"playground/sets/{refunds.pk}")
    names = ["support", "support@canary", "support@1", "base", "support@nobody"]
    asked = owner.get(one, {"model": names}).json()["models"]
    assert asked == ["support@2", "support@1", "support@1", "base"]  # four panes at most


def test_a_model_that_competes_with_itself_counts_neither_way() -> None:
    runs = [
        Run(["x", "x", "y"], ["A", "C", "tie", ""]),
        Run(["y", "x"], ["B"]),
        Run(["z", "x"], [""]),
    ]
    assert scores(runs) == [Score("x", 1, 0, 1, 2), Score("y", 1, 1, 4, 2)]
