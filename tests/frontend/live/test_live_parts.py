"""The live parts of pages: each at its own address, with the permissions of its page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from frontend.live.topics import TOPICS
from frontend.views.adapters.fingerprints import fingerprints
from frontend.views.live import OF_ALL, OF_TENANT
from inference.gateway.measuring.history import STEP_S, History
from tenants.models import (
    LIVE,
    AdapterVersion,
    Alias,
    LimitScope,
    LimitSet,
    State,
    Tenant,
    UsageRollup,
)
from tests.fleet.fake import FakeGateways
from tests.frontend.clients import client_of
from tests.frontend.operate.test_operate import ENGINE
from tests.inference.measuring.test_history import counted
from tests.tenants.making import (
    make_adapter,
    make_base,
    make_batch,
    make_key,
    make_rollout,
    make_tenant,
    make_version,
)

OPERATOR = LimitSet.Author.OPERATOR
MARKED = {"adapters"}
"""Topics without an address of their own, because the whole page is fetched again."""


@pytest.fixture(autouse=True)
def engine(gateways: FakeGateways) -> None:
    gateways.engines = [ENGINE | {"resident_adapters": list(ENGINE["resident_adapters"])}]


def html(client: Client, where: str) -> str:
    """The HTML that a part's address returns."""
    answer = client.get(where)
    assert answer.status_code == 200, answer.content
    assert "no-store" in answer["Cache-Control"]
    return str(answer.json()["html"])


# --- Permissions ---------------------------------------------------------------------------------


def test_every_topic_has_an_address() -> None:
    tenants = {str(one.pattern) for one in OF_TENANT}
    whole = {str(one.pattern) for one in OF_ALL}
    assert tenants == {topic.name for topic in TOPICS.values() if topic.needs} - MARKED
    assert whole == {topic.name for topic in TOPICS.values() if topic.whole}


@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 200), ("admin", 200), ("developer", 200), ("viewer", 200), ("operator", 200),
     ("outsider", 404), ("nobody", 302)],
)  # fmt: skip
def test_a_tenants_parts_are_for_its_people(
    tenant: Tenant, gateways: FakeGateways, role: str, status: int
) -> None:
    client, batch = client_of(tenant, role), make_batch(make_key(tenant)[0])
    for topic in (str(one.pattern) for one in OF_TENANT):
        query = {"batch": batch.pk} if topic == "batches" else {}
        expected = 403 if (topic, role) == ("batches", "viewer") else status
        assert client.get(f"/t/acme/live/{topic}", query).status_code == expected, topic
        assert client.post(f"/t/acme/live/{topic}").status_code == 405, topic


@pytest.mark.parametrize(
    ("role", "status"),
    [("operator", 200), ("owner", 404), ("viewer", 404), ("outsider", 404), ("nobody", 302)],
)
def test_the_installations_parts_are_for_operators(
    tenant: Tenant, gateways: FakeGateways, role: str, status: int
) -> None:
    client, rollout = client_of(tenant, role), make_rollout(make_base())
    for topic in (str(one.pattern) for one in OF_ALL):
        query = {"rollout": rollout.pk} if topic == "rollouts" else {}
        assert client.get(f"/operate/live/{topic}", query).status_code == status, topic


def test_a_live_part_redirects_anonymous_users_to_sign_in(tenant: Tenant) -> None:
    answer = Client().get("/t/acme/live/engines", headers={"HX-Request": "true"})
    assert (answer.status_code, answer["HX-Redirect"]) == (204, "/account/login/")


# --- Contents ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "topic"),
    [("/t/acme/engines", "/t/acme/live/engines"), ("/t/acme/", "/t/acme/live/steps"),
     ("/t/acme/limits", "/t/acme/live/limits"), ("/operate/engines", "/operate/live/fleet"),
     ("/operate/engines", "/operate/live/history"), ("/operate/", "/operate/live/figures")],
)  # fmt: skip
def test_a_part_is_what_its_page_shows(
    tenant: Tenant, gateways: FakeGateways, operator: Client, page: str, topic: str
) -> None:
    shown = operator.get(page).content.decode()
    assert f'src="{topic}"' in shown
    assert html(operator, topic) in shown


def test_a_tenant_sees_its_own_adapters_on_engines(tenant: Tenant, gateways: FakeGateways) -> None:
    globex = make_tenant("globex")
    shown = [
        html(client_of(one, "viewer"), f"/t/{one.slug}/live/engines") for one in (tenant, globex)
    ]
    assert ["support@" in one for one in shown] == [True, False]
    assert ["secret@" in one for one in shown] == [False, True]


def test_operators_see_the_whole_fleet(operator: Client, gateways: FakeGateways) -> None:
    gateways.engines.append(ENGINE | {"id": "engine-2", "running": 40})
    table = html(operator, "/operate/live/fleet")
    assert "engine-2" in table and "globex/secret@" in table
    assert "<dd>43</dd>" in html(operator, "/operate/live/figures")


def test_what_is_used_of_limits_is_said_of_each_scope(tenant: Tenant, admin: Client) -> None:
    key, adapter = make_key(tenant)[0], make_adapter(tenant)
    scopes = [LimitScope(tenant), LimitScope(tenant, key=key), LimitScope(tenant, adapter=adapter)]
    for scope, most in zip(scopes, (1000, 2000, 3000), strict=True):
        scope.store(OPERATOR, {"tokens_per_day": most})
    use(tenant, tokens=70)
    asked = ["", f"?of=key:{key.pk}", f"?of=adapter:{adapter.name}"]
    texts = [html(admin, f"/t/acme/live/limits{one}").replace(",", "") for one in asked]
    assert [most in text for most, text in zip(("1000", "2000", "3000"), texts, strict=True)]
    assert 'value="70" ' in texts[0]
    globex = client_of(make_tenant("globex"), "owner")
    for one in asked[1:]:
        assert globex.get(f"/t/globex/live/limits{one}").status_code == 404
    for nonsense in ("key:x", "key:" + "9" * 30, "other"):
        assert admin.get(f"/t/acme/live/limits?of={nonsense}").status_code == 404


def test_a_keys_page_asks_for_that_keys_limits(tenant: Tenant, admin: Client) -> None:
    key = make_key(tenant)[0]
    page = admin.get(f"/t/acme/limits/keys/{key.pk}").content.decode()
    assert f'src="/t/acme/live/limits?of=key%3A{key.pk}"' in page


def test_the_minute_is_asked_of_the_gateways(
    tenant: Tenant, admin: Client, gateways: FakeGateways
) -> None:
    gateways.counted = 41
    LimitScope(tenant).store(OPERATOR, {"requests_per_minute": 50})
    assert "41 of 50" in html(admin, "/t/acme/live/limits")


def use(tenant: Tenant, tokens: int = 10) -> None:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    figures = dict.fromkeys(
        ("cached_tokens", "completion_tokens", "reasoning_tokens", "cost"), 0
    ) | {"requests": 1, "prompt_tokens": tokens}
    names = {"adapter": "", "model": "base", "base_model": "base"}
    key = make_key(tenant)[0]
    UsageRollup.objects.create(tenant=tenant, key=key, hour=hour, **names, **figures)


def test_the_first_steps_turn_green(tenant: Tenant, gateways: FakeGateways) -> None:
    viewer = client_of(tenant, "viewer")

    def done() -> int:
        return html(viewer, "/t/acme/live/steps").count("(done)")

    assert done() == 1
    make_key(tenant)
    assert done() == 2
    use(tenant)
    assert done() == 3


def test_the_history_is_of_all_engines_or_of_one(operator: Client, gateways: FakeGateways) -> None:
    history, at = History(), (timezone.now() - timedelta(minutes=5)).timestamp()
    for step in range(3):
        one = counted(step * 100, step * 10, "one", running=1, kv_usage=0.2)
        other = counted(step * 50, step * 30, "other", queued=2, waiting=1, kv_usage=0.7)
        history.note([one, other], at + step * STEP_S)
    gateways.points = history.points()
    assert 'data-value="15.0"' in html(operator, "/operate/live/history")
    assert 'data-value="10.0"' in html(operator, "/operate/live/history?engine=one")
    page = operator.get("/operate/engines?engine=one").content.decode()
    assert '<option value="one" selected>' in page and '<option value="other">' in page
    assert 'src="/operate/live/history?engine=one"' in page
    assert operator.get("/operate/live/history?engine=%00%22%3E").status_code == 200


# --- Marks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda version: version.advance(State.PROBING),
        lambda version: version.delete(),
        lambda version: make_version(version.adapter),
        lambda version: make_adapter(version.adapter.tenant, "another"),
        lambda version: type(version.adapter).objects.update(pinned=True),
        lambda version: Alias.objects.create(
            adapter=version.adapter, name=LIVE, version=make_version(version.adapter)
        ),
    ],
    ids=["state", "deleted", "version", "adapter", "pinned", "alias"],
)
def test_a_change_changes_the_mark_of_its_tenant_alone(
    tenant: Tenant, gateways: FakeGateways, change: Callable[[AdapterVersion], object]
) -> None:
    other = make_tenant()
    version = make_version(make_adapter(tenant), state=State.VALIDATING)
    asked = [(tenant.pk, ""), (other.pk, "")]
    before = fingerprints(asked)
    assert fingerprints(asked) == before
    change(version)
    after = fingerprints(asked)
    assert [after[one] != before[one] for one in asked] == [True, False]


def test_how_checks_go_and_where_it_is_loaded_change_it(
    tenant: Tenant, gateways: FakeGateways, django_assert_num_queries: Any
) -> None:
    version = make_version(make_adapter(tenant), state=State.VALIDATING)
    whole, one, foreign = asked = [
        (tenant.pk, ""), (tenant.pk, str(version.pk)), (make_tenant().pk, str(version.pk))
    ]  # fmt: skip
    seen = [fingerprints(asked)]
    AdapterVersion.objects.update(report={"waiting_for": "an engine"})
    seen.append(fingerprints(asked))
    assert [seen[0][key] != seen[1][key] for key in asked] == [False, True, False]
    gateways.engines[0]["resident_adapters"] = []
    with django_assert_num_queries(2):
        seen.append(fingerprints(asked))
    assert [seen[1][key] != seen[2][key] for key in (whole, one, foreign)] == [True, True, False]
    assert fingerprints([(10**9, ""), (tenant.pk, "x"), (tenant.pk, "9" * 30)]).keys() == {
        (tenant.pk, "x"), (tenant.pk, "9" * 30)
    }  # fmt: skip


@pytest.mark.parametrize("page", ["", "/support/", "/support/versions/1"])
def test_a_page_that_is_as_it_was_seen_is_not_made_again(
    tenant: Tenant, gateways: FakeGateways, page: str
) -> None:
    version = make_version(make_adapter(tenant, "support"))
    client, where = client_of(tenant, "viewer"), f"/t/acme/adapters{page}"
    seen = client.get(where)
    fingerprint = seen.context["fingerprint"]
    assert f'seen="{fingerprint}"' in seen.content.decode()
    asked = {"If-None-Match": f'"{fingerprint}"'}
    assert client.get(where, headers=asked).status_code == 304
    version.advance(State.ARCHIVED)
    assert client.get(where, headers=asked).context["fingerprint"] != fingerprint
