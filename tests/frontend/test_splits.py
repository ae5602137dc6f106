"""Splits on the pages of adapters."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from frontend.views.adapters.fingerprints import fingerprint
from tenants.models import (
    AdapterVersion,
    Alias,
    PromotionGate,
    Split,
    SplitRequest,
    SplitState,
    Tenant,
)
from tenants.splits import jobs
from tests.frontend.clients import client_of
from tests.tenants.making import (
    make_adapter,
    make_eval,
    make_eval_run,
    make_key,
    make_tenant,
    make_version,
)

pytestmark = pytest.mark.django_db

FILLED = {
    "alias": "live",
    "version": "2",
    "weights": "10, 50",
    "min_requests": "20",
    "sticky": "header",
    "header": "X-Team",
    "errors_margin": "1",
    "cuts_margin": "",
    "structure_margin": "3",
    "slow_margin": "5",
    "slow_seconds": "1.5",
    "score_name": "liked",
    "score_margin": "3",
    "max_requests": "1000",
    "max_hours": "24",
    "rolls_back": "on",
}
ACTIONS = ("pause", "resume", "promote", "stop", "weigh", "evaluate")


@pytest.fixture
def live(tenant: Tenant) -> AdapterVersion:
    version = make_version(make_adapter(tenant))
    version.adapter.promote(version)
    make_version(version.adapter)
    return version


@pytest.fixture
def split(live: AdapterVersion) -> Split:
    candidate = live.adapter.versions.get(number=2)
    return Split.objects.start(live.adapter.aliases.get(), candidate, None)


@pytest.fixture
def client(tenant: Tenant) -> Client:
    return client_of(tenant, "developer")


def url(page: str, *more: Any, tenant: str = "acme") -> str:
    return reverse(page, args=[tenant, "support", *more])


def test_a_split_as_it_was_filled_in(client: Client, live: AdapterVersion) -> None:
    page = client.get(url("adapters-split") + "?version=2")
    assert page.status_code == 200 and 'value="2" selected' in page.text
    assert client.post(url("adapters-split"), FILLED).status_code == 302
    split = Split.objects.get()
    assert (split.alias, split.stable, split.candidate.number) == ("live", live, 2)
    assert (split.weights, split.header, split.rolls_back, split.promotes) == (
        [10, 50], "x-team", True, False,
    )  # fmt: skip
    assert split.guards == [
        {"kind": "errors", "margin": 0.01},
        {"kind": "slow", "margin": 0.05, "seconds": 1.5},
        {"kind": "structure", "margin": 0.03},
        {"kind": "score", "name": "liked", "margin": 0.03},
    ]


def test_a_shadow(client: Client, live: AdapterVersion) -> None:
    key = make_key(live.adapter.tenant, "inference")[0]
    other = make_key(make_tenant("globex"), "inference")[0]
    assert other.prefix not in client.get(url("adapters-split")).text
    filled = FILLED | {"slow_margin": "", "shadow_key": str(other.pk)}
    assert client.post(url("adapters-split"), filled).status_code == 422
    done = client.post(url("adapters-split"), filled | {"shadow_key": str(key.pk)}, follow=True)
    assert "Version 2 gets copies of a share of “live” from now on." in done.text
    assert "version 2 gets copies of 10%" in done.text and "End the shadow" in done.text
    assert Split.objects.get().shadow_key == key


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "1"}, "The alias points at this version already."),
        ({"version": "9"}, "This is not a ready version of this adapter."),
        ({"weights": "50, 10"}, "each above the last"),
        ({"weights": "5; 10"}, "with commas between"),
        ({"header": ""}, "Set `header`"),
        ({"score_name": "A b"}, "lowercase letters"),
        ({"errors_margin": "nan"}, "Enter a number"),
        (
            {"errors_margin": "", "slow_margin": "", "structure_margin": "", "score_name": ""},
            "at least one guard",
        ),
        ({"slow_seconds": ""}, "`seconds` of a guard must be a number"),
        ({"max_requests": "0"}, "greater than or equal to 1"),
    ],
)
def test_what_is_wrong_is_told(
    client: Client, live: AdapterVersion, change: dict[str, str], said: str
) -> None:
    page = client.post(url("adapters-split"), FILLED | change)
    assert page.status_code == 422 and said in page.text
    assert not Split.objects.exists()


def test_a_second_split_is_refused(client: Client, split: Split) -> None:
    page = client.post(url("adapters-split"), FILLED)
    assert page.status_code == 422 and "The alias already has a split." in page.text


def test_figures_are_shown(client: Client, split: Split) -> None:
    before = fingerprint(split.adapter.tenant)
    assert "No figures yet" in client.get(url("adapters-one")).text
    for number in range(8):
        SplitRequest.objects.create(
            split=split, request_id=str(number), candidate=number % 2 == 0, weight=5,
            failed=number == 0, cut=False, ended_at=timezone.now(),
        )  # fmt: skip
    jobs.judge(split.pk)
    page = client.get(url("adapters-one")).text
    for said in ("Split of “live”: version 2 gets 5%", "25% of 4", "0% of 4", "not certain yet",
                 "96 more requests"):  # fmt: skip
        assert said in page
    assert fingerprint(split.adapter.tenant) != before


def test_its_life(client: Client, split: Split) -> None:
    states = []
    for what in ("pause", "resume", "promote"):
        assert client.post(url(f"adapters-split-{what}", split.pk)).status_code == 302
        split.refresh_from_db()
        states.append(split.state)
    assert states == [SplitState.PAUSED, SplitState.RUNNING, SplitState.PROMOTED]
    assert Alias.objects.get().version == split.candidate
    page = client.post(url("adapters-split-stop", split.pk), follow=True)
    assert "The split has ended." in page.text and "Earlier splits" in page.text


def test_it_can_be_stopped(client: Client, split: Split) -> None:
    client.post(url("adapters-split-stop", split.pk))
    split.refresh_from_db()
    assert split.state == SplitState.STOPPED and Alias.objects.get().version == split.stable


@pytest.mark.parametrize("what", ACTIONS)
@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("outsider", 404), ("nobody", 302)])
def test_who_may_not(tenant: Tenant, split: Split, what: str, role: str, status: int) -> None:
    assert (
        client_of(tenant, role).post(url(f"adapters-split-{what}", split.pk)).status_code == status
    )
    split.refresh_from_db()
    assert split.state == SplitState.RUNNING


@pytest.mark.parametrize("what", ACTIONS)
def test_splits_of_another_tenant_are_not_found(split: Split, what: str) -> None:
    other = make_adapter(make_tenant("globex"))
    client = client_of(other.tenant, "owner")
    for tenant in ("globex", "acme"):
        asked = url(f"adapters-split-{what}", split.pk, tenant=tenant)
        assert client.post(asked).status_code == 404
    split.refresh_from_db()
    assert split.state == SplitState.RUNNING


def test_its_weight_is_set(client: Client, split: Split) -> None:
    page = client.get(url("adapters-one")).text
    assert f'action="{url("adapters-split-weigh", split.pk)}"' in page
    client.post(url("adapters-split-weigh", split.pk), {"weight": "37"})
    split.refresh_from_db()
    assert (split.weight, split.reason) == (37, "The weight was set.")
    for wrong in ("100", "-1", "", "x"):
        answer = client.post(url("adapters-split-weigh", split.pk), {"weight": wrong}, follow=True)
        assert "from 0 to 99" in answer.text
    split.refresh_from_db()
    assert split.weight == 37


def test_the_run_of_a_required_eval(client: Client, live: AdapterVersion, tenant: Tenant) -> None:
    eval = make_eval(tenant)
    rows = make_eval_run(eval, make_key(tenant)[0], [True])
    rows.source = {
        "type": "completions",
        "model": "base",
        "source": {"type": "file_id", "id": rows.file_id},
        "input_messages": {"type": "item_reference", "item_reference": "item.messages"},
    }
    rows.save()
    PromotionGate.objects.put(live.adapter, "live", eval, 0.9)
    client.post(url("adapters-split"), FILLED)
    split = Split.objects.select_related("eval_run").get()
    run = split.eval_run
    assert run is not None and run.model == "support@2" and run.key.created_by is not None
    page = client.get(url("adapters-one")).text
    again = f'action="{url("adapters-split-evaluate", split.pk)}"'
    assert "Eval running" in page and run.pk in page and again not in page
    run.note(status="failed")
    page = client.get(url("adapters-one")).text
    assert "Eval running" not in page and again in page
    answer = client.post(url("adapters-split-evaluate", split.pk), follow=True)
    assert "The eval is run on the candidate." in answer.text and "Eval running" in answer.text
    assert eval.runs.filter(model="support@2").count() == 2
    eval.runs.update(status="canceled")
    answer = client.post(url("adapters-split-evaluate", split.pk), follow=True)
    assert "no completed run whose rows could be asked again" not in answer.text, "one is under way"
    eval.runs.update(ended_at=timezone.now())
    answer = client.post(url("adapters-split-evaluate", split.pk), follow=True)
    assert "no completed run whose rows could be asked again" in answer.text
