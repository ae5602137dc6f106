"""What the topics of state say: fragments of pages, and marks of what has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from channels.db import database_sync_to_async

from frontend.live import states
from frontend.live.feeds import Key
from frontend.live.history import HISTORY, STEP_S
from frontend.views.limits import query_of
from frontend.views.marks import marks
from frontend.views.operate.engines import past
from tenants.api.endpoints import engines
from tenants.limits import consumption
from tenants.models import LIVE, AdapterVersion, Alias, LimitScope, LimitSet, State, Tenant
from tests.frontend.clients import client_of
from tests.frontend.test_live_history import counted
from tests.frontend.test_operate import ENGINE, use
from tests.tenants.making import make_adapter, make_base, make_key, make_tenant, make_version

OPERATOR = LimitSet.Author.OPERATOR


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The connected engines, as the gateway's wiring would tell them."""
    connected = [dict(ENGINE)]
    monkeypatch.setattr(engines, "snapshot_source", lambda: connected)
    return connected


@pytest.fixture
def acme(transactional_db: None) -> Tenant:
    make_base()
    return make_tenant("acme")


@pytest.fixture
def globex(acme: Tenant) -> Tenant:
    return make_tenant("globex")


in_thread = database_sync_to_async


# --- Fragments -----------------------------------------------------------------------------------


async def test_a_tenant_hears_of_its_own_adapters_on_engines(
    acme: Tenant, globex: Tenant, fleet: list[dict[str, Any]]
) -> None:
    keys = [Key("engines", tenant.pk) for tenant in (acme, globex)]
    told = await states.engines(keys)
    shown = [told[key]["html"] for key in keys]
    assert ["support@" in html for html in shown] == [True, False]
    assert ["secret@" in html for html in shown] == [False, True]
    assert await states.engines([Key("engines", 10**9)]) == {}


async def test_operators_hear_of_the_whole_fleet(db: None, fleet: list[dict[str, Any]]) -> None:
    fleet.append(ENGINE | {"id": "engine-2", "running": 40})
    (table,) = (await states.fleet([Key("fleet")])).values()
    assert "engine-2" in table["html"] and "globex/secret@" in table["html"]
    (figures,) = (await states.figures([Key("figures")])).values()
    assert "<dd>43</dd>" in figures["html"]


async def test_what_is_used_of_limits_is_told_of_each_scope(acme: Tenant, globex: Tenant) -> None:
    def arrange() -> list[LimitScope]:
        key, adapter = make_key(acme)[0], make_adapter(acme)
        found = [LimitScope(acme), LimitScope(acme, key=key), LimitScope(acme, adapter=adapter)]
        for scope, most in zip(found, (1000, 2000, 3000), strict=True):
            scope.store(OPERATOR, {"tokens_per_day": most})
        use(acme, hours_ago=0, tokens=70)
        return found

    scopes = await in_thread(arrange)()
    asked = [Key("limits", acme.pk, query_of(scope)) for scope in scopes]
    foreign = [Key("limits", globex.pk, key.query) for key in asked[1:]]
    nonsense = [Key("limits", acme.pk, query) for query in ("key:x", "key:" + "9" * 30, "other")]
    told = await states.limits([*asked, *foreign, *nonsense])
    assert set(told) == set(asked)
    texts = [told[key]["html"].replace("\u202f", "") for key in asked]
    assert [limit in text for limit, text in zip(("1000", "2000", "3000"), texts, strict=True)]
    assert 'value="70" ' in texts[0]


async def test_the_minute_is_asked_of_the_limiter(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counters:
        async def used(self, limits: Any) -> dict[str, int]:
            return {"requests_per_minute": 41}

    monkeypatch.setattr(consumption, "counters", Counters())
    await in_thread(LimitScope(acme).store)(OPERATOR, {"requests_per_minute": 50})
    (told,) = (await states.limits([Key("limits", acme.pk)])).values()
    assert "41 of 50" in told["html"]


async def test_the_first_steps_turn_green(acme: Tenant, fleet: list[dict[str, Any]]) -> None:
    async def done() -> int:
        (told,) = (await states.steps([Key("steps", acme.pk)])).values()
        return int(told["html"].count("(done)"))

    assert await done() == 1
    await in_thread(make_key)(acme)
    assert await done() == 2
    await in_thread(use)(acme)
    assert await done() == 3


# --- The history ---------------------------------------------------------------------------------


@pytest.fixture
def engines_past() -> Sequence[float]:
    """Two engines of this process's history; nothing else samples in tests."""
    at = 10**10
    for step in range(3):
        one = counted(step * 100, step * 10, "one", running=1, kv_usage=0.2)
        other = counted(step * 50, step * 30, "other", queued=2, waiting=1, kv_usage=0.7)
        HISTORY.note([one, other], at + step * STEP_S)
    return [at + step * STEP_S for step in range(3)]


def test_the_past_is_added_up_over_engines(engines_past: Sequence[float]) -> None:
    last = past()["past"][-1]
    figures = (last.prompt, last.output, last.running, last.queued, last.kv_usage)
    assert figures == (15.0, 4.0, 1, 3, 0.7)
    one = past("one")["past"][-1]
    assert (one.prompt, one.output, one.running, one.queued, one.kv_usage) == (10, 1, 1, 0, 0.2)
    assert past("nobody")["past"] == []
    assert past()["known"] == ["one", "other"]


async def test_the_past_is_told_as_a_table(db: None, engines_past: Sequence[float]) -> None:
    keys = [Key("history"), Key("history", query="one")]
    told = await states.history(keys)
    assert 'data-value="15.0"' in told[keys[0]]["html"]
    assert 'data-value="10.0"' in told[keys[1]]["html"]


def test_the_page_offers_each_engine_of_the_past(
    tenant: Tenant, engines_past: Sequence[float]
) -> None:
    client = client_of(tenant, "operator")
    page = client.get("/operate/engines?engine=one").content.decode()
    assert '<option value="one" selected>' in page and '<option value="other">' in page
    assert '<live-part topic="history" query="one">' in page
    assert client.get("/operate/engines?engine=%00%22%3E").status_code == 200


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
    tenant: Tenant, change: Callable[[AdapterVersion], object]
) -> None:
    other = make_tenant()
    version = make_version(make_adapter(tenant), state=State.VALIDATING)
    asked = [(tenant.pk, ""), (other.pk, "")]
    before = marks(asked)
    assert marks(asked) == before
    change(version)
    after = marks(asked)
    assert [after[one] != before[one] for one in asked] == [True, False]


def test_how_checks_go_and_where_it_is_loaded_change_it(
    tenant: Tenant, fleet: list[dict[str, Any]], django_assert_num_queries: Any
) -> None:
    version = make_version(make_adapter(tenant), state=State.VALIDATING)
    whole, one, foreign = asked = [
        (tenant.pk, ""), (tenant.pk, str(version.pk)), (make_tenant().pk, str(version.pk))
    ]  # fmt: skip
    seen = [marks(asked)]
    AdapterVersion.objects.update(report={"waiting_for": "an engine"})
    seen.append(marks(asked))
    assert [seen[0][key] != seen[1][key] for key in asked] == [False, True, False]
    fleet[0]["resident_adapters"] = []
    with django_assert_num_queries(2):
        seen.append(marks(asked))
    assert [seen[1][key] != seen[2][key] for key in (whole, one, foreign)] == [True, True, False]
    assert marks([(10**9, ""), (tenant.pk, "x"), (tenant.pk, "9" * 30)]).keys() == {
        (tenant.pk, "x"), (tenant.pk, "9" * 30)
    }  # fmt: skip


async def test_the_mark_is_what_a_page_is_told(acme: Tenant) -> None:
    page = await in_thread(look)(acme)
    (told,) = (await states.adapters([Key("adapters", acme.pk)])).values()
    assert page.context["mark"] == told["mark"]


def look(tenant: Tenant) -> Any:
    return client_of(tenant, "viewer").get(f"/t/{tenant.slug}/adapters")
