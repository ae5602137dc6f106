"""The operator's pages: the whole installation, for operators only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.conf import settings as configured
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from procrastinate.contrib.django.models import ProcrastinateJob
from pytest_django.asserts import assertContains

from frontend.navigation import OPERATOR
from frontend.views.operate.models import ModuleKind, module_kinds
from gateway.middleware import policy
from inference.gateway.measuring.start_failures import StartFailure
from inference.interfaces.directory import PICO
from tenants.api.endpoints.fleet import engines
from tenants.models import (
    Adapter,
    AuditEntry,
    BaseModel,
    EngineJournal,
    GatewayProcess,
    IsolationCheck,
    LimitScope,
    LimitSet,
    Price,
    Tenant,
    TenantDeletion,
    UsageRollup,
)
from tenants.naming import ISOLATION_TENANTS
from tests.fleet.fake import FakeGateways
from tests.frontend.clients import client_of
from tests.frontend.every_page.test_lists import ways
from tests.frontend.test_audit import rows
from tests.tenants.making import (
    make_adapter,
    make_base,
    make_gateway,
    make_key,
    make_member,
    make_tenant,
    make_version,
)
from tests.tenants.refusing import met

PAGES = [page for page, *_ in OPERATOR]
ENGINE: dict[str, Any] = {
    "id": "engine-1",
    "kind": "synthetic",
    "base_model": "base",
    "max_model_len": 512,
    "max_loras": 4,
    "max_lora_rank": 16,
    "kv_tokens": 65_536,
    "overflow": False,
    "role": "",
    "connected_at": "2026-01-02T03:04:05+00:00",
    "draining": False,
    "asleep": False,
    "running": 3,
    "waiting": 1,
    "queued": 2,
    "kv_usage": 0.25,
    "resident_adapters": ["acme/support@" + "a" * 64, "globex/secret@" + "b" * 64],
    "prompt_tokens": 1000,
    "cached_tokens": 400,
    "completion_tokens": 500,
}


@pytest.fixture
def fleet(gateways: FakeGateways) -> list[dict[str, Any]]:
    """The connected engines that the gateways report; the test may change them."""
    gateways.engines = [dict(ENGINE)]
    return gateways.engines


def use(tenant: Tenant, *, hours_ago: float = 1, cost: int = 0, tokens: int = 10) -> None:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours_ago)
    UsageRollup.objects.create(
        tenant=tenant,
        key=make_key(tenant)[0],
        hour=hour,
        adapter="",
        model="base",
        base_model="base",
        requests=1,
        prompt_tokens=tokens,
        cached_tokens=0,
        completion_tokens=0,
        reasoning_tokens=0,
        cost=cost * PICO,
    )


@pytest.mark.parametrize("page", PAGES)
def test_an_operator_sees_every_page(
    operator: Client, fleet: list[dict[str, Any]], page: str, django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(13):  # one, the first time, notes the session
        shown = operator.get(reverse(page))
    assert shown.status_code == 200
    assert shown["Content-Security-Policy"] == policy(configured.API_URL)


@pytest.mark.parametrize("role", ["owner", "admin", "developer", "viewer", "outsider"])
def test_operators_pages_do_not_exist_for_others(tenant: Tenant, role: str) -> None:
    client = client_of(tenant, role)
    for page in (*PAGES, "operate_engines-drain"):
        assert client.get(reverse(page)).status_code == 404, page


@pytest.mark.parametrize("role", ["owner", "outsider"])
@pytest.mark.parametrize("page", ["operate_tenants", "operate_prices"])
def test_only_operators_change_tenants(tenant: Tenant, page: str, role: str) -> None:
    tenants = Tenant.objects.count() + (role == "outsider")
    client = client_of(tenant, role)
    assert client.post(reverse(page), {"name": "X", "slug": "x", "weight": 1}).status_code == 404
    for verb in ("suspend", "activate"):
        where = reverse(f"operate_tenants-{verb}", args=[tenant.slug])
        assert client.post(where).status_code == 404
    assert (Tenant.objects.count(), Price.objects.count()) == (tenants, 0)
    assert Tenant.objects.get(pk=tenant.pk).active


def test_who_is_not_signed_in_goes_to_sign_in(db: None) -> None:
    where = reverse("operate")
    assert Client().get(where)["Location"] == f"/account/login/?next={where}"


def test_an_operator_who_signs_in_lands_on_the_installation(tenant: Tenant) -> None:
    assert client_of(tenant, "operator").get("/")["Location"] == reverse("operate")
    assert client_of(tenant, "owner").get("/")["Location"] == f"/t/{tenant.slug}/"


# --- overview ------------------------------------------------------------------------------------


def test_the_overview_adds_up_the_engines_and_the_period(
    operator: Client, tenant: Tenant, fleet: list[dict[str, Any]]
) -> None:
    fleet.append(ENGINE | {"id": "engine-2", "kv_usage": 0.75, "draining": True})
    other = make_tenant()
    use(tenant, cost=1, tokens=500)
    use(other, cost=2, tokens=5)
    use(other, hours_ago=30, cost=4, tokens=5)
    use(other, hours_ago=24 * 8, cost=100, tokens=9999)
    day = operator.get(reverse("operate")).context
    assert (day["billed"]["requests"], day["billed"]["cost"]) == (2, 3 * PICO)
    assert [row["cost"] / PICO for row in day["tops"]] == [2, 1]
    context = operator.get(reverse("operate"), {"period": "7d"}).context
    assert context["fleet"] == {
        "engines": 2, "draining": 1, "running": 6, "waiting": 2, "queued": 4, "kv_usage": 0.75,
    }  # fmt: skip
    assert (context["billed"]["requests"], context["billed"]["cost"]) == (3, 7 * PICO)
    tops = [(row["tenant"].slug, row["cost"] / PICO, row["tokens"]) for row in context["tops"]]
    assert context["top_by"] == "cost"
    assert tops == [(other.slug, Decimal(6), 10), (tenant.slug, Decimal(1), 500)]


def test_while_nothing_has_a_price_tenants_are_compared_by_tokens(
    operator: Client, tenant: Tenant
) -> None:
    other = make_tenant()
    use(tenant, cost=0, tokens=5)
    use(other, cost=0, tokens=500)
    context = operator.get(reverse("operate")).context
    assert context["top_by"] == "tokens"
    assert [row["tenant"].slug for row in context["tops"]] == [other.slug, tenant.slug]


def test_the_overview_of_a_new_installation_says_what_is_missing(operator: Client) -> None:
    page = operator.get(reverse("operate")).content.decode()
    assert "No engine is connected" in page
    assert "No engine has reported its counts recently" in page
    assert "none in the last 10 seconds" in page


def test_the_overview_says_where_ledger_and_engines_differ(operator: Client) -> None:
    now = timezone.now()
    for i in range(12):
        EngineJournal.objects.create(
            journal=f"right-{i}", engine_id="engine-1", reported_at=now - timedelta(days=i)
        )
    EngineJournal.objects.create(journal="wrong", engine_id="engine-2", counted_requests=3)
    make_gateway("http://gateway:8000")
    page = operator.get(reverse("operate"))
    shown = page.context["journals"]
    names = [drift.journal.journal for drift in shown["shown"]]
    assert names == ["wrong", *(f"right-{i}" for i in range(10))]
    assert (shown["wrong"], shown["more"]) == (1, 2)
    assert "http://gateway:8000" in page.content.decode()


@pytest.mark.parametrize(
    ("redis", "degraded", "without", "state"),
    [
        ("", True, "local", "local"),
        ("redis://here", False, "local", "shared"),
        ("redis://here", True, "local", "degraded"),
        ("redis://here", True, "refuse", "refusing"),
    ],
)
def test_the_overview_says_how_limits_are_counted(
    operator: Client, settings: Any, gateways: FakeGateways,
    redis: str, degraded: bool, without: str, state: str,
) -> None:  # fmt: skip
    settings.REDIS_URL, settings.LIMITS_WITHOUT_REDIS = redis, without
    gateways.limits_degraded = degraded
    assert operator.get(reverse("operate")).context["limits"]["state"] == state


def test_the_overview_warns_of_gateways_that_count_limits_apart(
    operator: Client, settings: Any
) -> None:
    settings.REDIS_URL = ""
    for url in ("http://one:8000", "http://two:8000"):
        make_gateway(url)
    assert operator.get(reverse("operate")).context["limits"]["state"] == "degraded"


# --- tenants -------------------------------------------------------------------------------------


def slugs(client: Client, **query: str) -> list[str]:
    return [one.slug for one in client.get(reverse("operate_tenants"), query).context["tenants"]]


def test_tenants_are_filtered_and_sorted_in_the_address(operator: Client, tenant: Tenant) -> None:
    beta = make_tenant("beta")
    use(beta, hours_ago=0, cost=5)
    Tenant.objects.filter(pk=tenant.pk).update(weight=3, status="suspended", name="Zulu")
    assert slugs(operator) == ["acme", "beta"]
    assert slugs(operator, sort="-slug") == ["beta", "acme"]
    assert slugs(operator, sort="name") == ["beta", "acme"]
    assert slugs(operator, sort="-weight") == ["acme", "beta"]
    assert slugs(operator, sort="-cost") == ["beta", "acme"]
    assert slugs(operator, sort="cache_secret") == ["acme", "beta"]
    assert slugs(operator, q="zul") == ["acme"]
    assert slugs(operator, status="active") == ["beta"]
    assert slugs(operator, status="unheard of") == ["acme", "beta"]
    none = operator.get(reverse("operate_tenants"), {"q": "nobody"}).content.decode()
    assert "No tenant matches" in none


SORTS = ("slug", "-slug", "status", "-weight", "cost", "created_at")


def test_many_tenants_are_paged_without_loss(
    operator: Client, tenant: Tenant, django_assert_max_num_queries: Any
) -> None:
    Tenant.objects.bulk_create(
        Tenant(slug=f"t{i:04}", name=f"T {i}", weight=1 + i % 3) for i in range(129)
    )
    for sort in SORTS:
        seen: list[str] = []
        where: str | None = f"?sort={sort}&status=active"
        while where:
            with django_assert_max_num_queries(12):
                answer = operator.get(reverse("operate_tenants") + where)
            seen += [one.slug for one in answer.context["tenants"]]
            where = ways(answer).get("Next")
        assert len(seen) == len(set(seen)) == 130, sort


def test_a_tenant_is_made(operator: Client) -> None:
    body = {"name": "Glo<bex", "slug": "globex", "weight": "2.5"}
    made = operator.post(reverse("operate_tenants"), body)
    assert made["Location"] == reverse("operate_tenants-edit", args=["globex"])
    assert '<a href="/t/globex/">Glo&lt;bex</a> created.' in operator.get(made["Location"]).text
    assert Tenant.objects.get(slug="globex").weight == 2.5
    entry = AuditEntry.objects.filter(kind="tenant", action="created", name="globex").get()
    assert entry.actor_kind == "user"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slug", "acme"),
        ("slug", "Not A Slug"),
        ("weight", "0"),
        ("weight", "nan"),
        ("weight", "1001"),
        ("name", ""),
    ],
)
def test_a_tenant_with_wrong_values_is_not_made(operator: Client, field: str, value: str) -> None:
    body = {"name": "Globex", "slug": "globex", "weight": "1"} | {field: value}
    page = operator.post(reverse("operate_tenants"), body)
    assert page.status_code == 422
    assert list(page.context["form"].errors) == [field]
    assert Tenant.objects.count() == 1


def test_a_tenant_is_changed(
    operator: Client, tenant: Tenant, django_assert_max_num_queries: Any
) -> None:
    make_member(tenant, "owner")
    make_key(tenant)
    make_key(tenant)
    make_adapter(tenant)
    where = reverse("operate_tenants-edit", args=[tenant.slug])
    with django_assert_max_num_queries(12):
        shown = operator.get(where).context["tenant"]
    assert (shown.member_count, shown.key_count, shown.adapter_count) == (1, 2, 1)
    assert operator.post(where, {"name": "New", "weight": "4"}).status_code == 302
    wrong = operator.post(where, {"name": "Wrong", "weight": "-1"})
    assert wrong.status_code == 422
    assert wrong.context["name"] == "New"
    tenant.refresh_from_db()
    assert (tenant.name, tenant.weight, tenant.slug) == ("New", 4.0, "acme")
    assert operator.get(reverse("operate_tenants-edit", args=["nobody"])).status_code == 404


def test_a_tenant_is_suspended_and_activated(operator: Client, tenant: Tenant) -> None:
    where = reverse("operate_tenants-edit", args=[tenant.slug])
    assert "open streams end" in operator.get(where).content.decode()
    assert operator.get(reverse("operate_tenants-suspend", args=[tenant.slug])).status_code == 405
    operator.post(reverse("operate_tenants-suspend", args=[tenant.slug]))
    assert not Tenant.objects.get(pk=tenant.pk).active
    operator.post(reverse("operate_tenants-activate", args=[tenant.slug]))
    assert Tenant.objects.get(pk=tenant.pk).active
    changes = AuditEntry.objects.filter(kind="tenant", action="changed")
    assert [(entry.after or {})["status"] for entry in changes] == ["active", "suspended"]


# --- base models and prices ----------------------------------------------------------------------


def test_base_models_are_shown_with_the_price_in_force(
    operator: Client, fleet: list[dict[str, Any]], django_assert_max_num_queries: Any
) -> None:
    base = make_base()
    BaseModel.objects.filter(pk=base.pk).update(
        modules={f"model.layers.{i}.self_attn.q_proj": [64, 32] for i in range(3)}
    )
    now = timezone.now()
    for days, prompt in ((-2, 1), (-1, 150_000), (1, 9)):
        Price.objects.create(
            base_model=base, starts_at=now + timedelta(days=days), prompt=prompt,
            cached_prompt=0, output=2_500_000,
        )  # fmt: skip
    page = operator.get(reverse("operate_models"))
    ((model, price, serving),) = page.context["models"]
    assert (model, price.prompt, serving) == (base, 150_000, 1)
    assert "0.15" in page.content.decode() and "2.50" in page.content.decode()
    with django_assert_max_num_queries(12):
        one = operator.get(reverse("operate_models-one", args=[base.pk]))
    assert one.context["modules"] == [ModuleKind("q_proj", 64, 32, 3)]
    assert [price.state for price in one.context["prices"]] == ["scheduled", "in force", "past"]


def test_modules_of_one_name_and_two_shapes_are_two_kinds() -> None:
    shapes = {"a.0.up": [4, 2], "a.1.up": [4, 2], "b.up": [8, 2]}
    assert module_kinds(shapes) == [ModuleKind("up", 4, 2, 2), ModuleKind("up", 8, 2, 1)]


PLAN = {"of": "base", "prompt": "0.15", "cached_prompt": "0.015", "output": "0.6"}
PRICE = PLAN | {"confirmed": "yes"}


def test_what_a_price_changes_is_shown_before_it_is_set(operator: Client, tenant: Tenant) -> None:
    base, now = make_base(), timezone.now()
    make_adapter(tenant)
    where, later = reverse("operate_prices"), "2199-01-01T10:30"

    def planned(**changed: str) -> list[tuple[str, int, int]]:
        page = operator.post(where, PLAN | changed)
        assert page.status_code == 200 and 'name="confirmed"' in page.text
        assert ("cannot be undone" in page.text) == ("starts_at" not in changed)
        changes: list[tuple[str, int, int]] = page.context["planned"].changes
        return changes

    new = {"Prompt": 150_000, "Cached prompt": 15_000, "Output": 600_000}
    assert planned() == [(name, 0, price) for name, price in new.items()]
    for days, prompt, tier in ((-2, 1, "standard"), (-1, 7, "standard"), (-1, 5, "batch")):
        Price.objects.create(
            base_model=base, starts_at=now + timedelta(days=days), prompt=prompt, cached_prompt=0,
            output=prompt, tier=tier,
        )  # fmt: skip
    standard, batch = planned(starts_at=later), planned(starts_at=later, tier="batch")
    assert [old for _, old, _ in standard] == [7, 0, 7]
    assert [old for _, old, _ in batch] == [5, 0, 5]
    assert planned(of="acme/support") == standard
    Price.objects.create(
        adapter=Adapter.objects.get(), starts_at=now, prompt=9, cached_prompt=9, output=9
    )
    assert [old for _, old, _ in planned(of="acme/support", tier="batch")] == [9, 9, 9]
    assert Price.objects.count() == 4


def test_a_price_is_set_from_now_in_units_per_million(operator: Client) -> None:
    base = make_base()
    before = timezone.now()
    assert operator.post(reverse("operate_prices"), PRICE).status_code == 302
    price = Price.objects.get()
    assert (price.prompt, price.cached_prompt, price.output) == (150_000, 15_000, 600_000)
    assert price.base_model == base and before <= price.starts_at <= timezone.now()


def test_an_adapters_price_is_set_for_a_moment_to_come_and_withdrawn(
    operator: Client, tenant: Tenant
) -> None:
    adapter = make_adapter(tenant)
    body = PRICE | {"of": "acme/support", "starts_at": "2199-01-01T10:30"}
    operator.post(reverse("operate_prices"), body)
    price = Price.objects.get()
    assert (price.adapter, price.starts_at) == (adapter, datetime(2199, 1, 1, 10, 30, tzinfo=UTC))
    twice = operator.post(reverse("operate_prices"), body)
    assert twice.status_code == 422 and "starts_at" in twice.context["form"].errors
    assert "Withdraw" in operator.get(reverse("operate_prices")).content.decode()
    operator.post(reverse("operate_prices-withdraw", args=[price.pk]))
    assert not Price.objects.exists()


def test_a_price_in_force_is_not_withdrawn(operator: Client) -> None:
    make_base()
    operator.post(reverse("operate_prices"), PRICE)
    where = reverse("operate_prices-withdraw", args=[Price.objects.get().pk])
    page = operator.post(where, follow=True)
    assert "A price in force cannot be withdrawn" in page.content.decode()
    assert Price.objects.exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("of", "nothing"),
        ("of", "acme/nothing"),
        ("prompt", "-1"),
        ("prompt", "1000001"),
        ("prompt", "0.0000001"),
        ("prompt", "NaN"),
        ("output", ""),
        ("cached_prompt", "0.16"),
        ("starts_at", "2001-01-01T00:00"),
        ("starts_at", "soon"),
    ],
)
def test_a_wrong_price_is_refused(operator: Client, field: str, value: str) -> None:
    make_base()
    page = operator.post(reverse("operate_prices"), PRICE | {field: value})
    assert page.status_code == 422
    assert field in page.context["form"].errors
    assert not Price.objects.exists()


def test_prices_are_listed_by_state_and_paged(operator: Client, tenant: Tenant) -> None:
    base, adapter = make_base(), make_adapter(tenant)
    now = timezone.now()
    figures = {"prompt": 3, "cached_prompt": 1, "output": 3}
    for i in range(1, 61):
        Price.objects.create(base_model=base, starts_at=now - timedelta(days=i), **figures)
    own = Price.objects.create(adapter=adapter, starts_at=now - timedelta(days=99), **figures)

    def listed(**query: Any) -> Any:
        return operator.get(reverse("operate_prices"), query).context

    assert [price.state for price in listed()["prices"]] == ["in force", "in force"]
    assert listed(q="support")["prices"] == listed(q="acme/support")["prices"] == [own]
    first = listed(state="past")
    second = listed(state="past", after=first["last"].pk)
    assert (len(first["prices"]), len(second["prices"]), second["last"]) == (50, 9, None)
    assert len(listed(state="all")["prices"]) == 50
    none = operator.get(reverse("operate_prices"), {"q": "nothing"}).content.decode()
    assert "No price matches" in none


# --- engines -------------------------------------------------------------------------------------


def test_engines_are_shown_with_their_load(operator: Client, fleet: list[dict[str, Any]]) -> None:
    page = operator.get(reverse("operate_engines"))
    (row,) = page.context["rows"]
    assert (row.cache_hits, row.engine["running"]) == (0.4, 3)
    assert [(one.adapter, one.version) for one in row.resident.shown] == [
        ("secret", "bbbbbbbb"), ("support", "aaaaaaaa")
    ]  # fmt: skip
    assert "globex/secret@bbbbbbbb<" in page.content.decode()
    assert '<live-part topic="fleet"' in page.content.decode()
    fleet.clear()
    assert "No engine is connected" in operator.get(reverse("operate_engines")).content.decode()


def test_an_engine_shows_its_profile_and_whether_it_was_proven(
    operator: Client, tenant: Tenant, fleet: list[dict[str, Any]]
) -> None:
    pages = [reverse("operate_engines"), reverse("operate_models-one", args=[make_base().pk])]
    assert all("profile ngram" not in operator.get(page).text for page in pages)
    fleet[0] |= {"profile": "ngram", "proof": "not proven on this hardware: <why>"}
    for page in pages:
        text = operator.get(page).text
        assert "ngram" in text and "not proven on this hardware: &lt;why&gt;" in text
    own = client_of(tenant, "owner").get(f"/t/{tenant.slug}/engines").text
    assert "not proven" not in own  # what the machine is like is the operator's business


def test_loaded_adapters_are_named_and_filtered(
    operator: Client,
    tenant: Tenant,
    fleet: list[dict[str, Any]],
    django_assert_max_num_queries: Any,
) -> None:
    versions = [make_version(make_adapter(tenant, f"a{number:02}")) for number in range(9)]
    fleet[0]["resident_adapters"] = [one.lora_name for one in versions]
    where = reverse("operate_engines")
    with django_assert_max_num_queries(12):
        page = operator.get(where).text
    assert "<summary>9 adapters</summary>" in page and "acme/a03@1</code>" in page
    found = operator.get(where, {"q": "A03@1"}).text
    assert "1 of 9:" in found and "acme/a03@1</code>" in found and "acme/a04" not in found
    assert 'src="/operate/live/fleet?q=A03%401"' in found
    part = operator.get("/operate/live/fleet", {"q": "nothing"}).json()["html"]
    assert "0 of 9" in part and "acme/" not in part
    own = client_of(tenant, "viewer").get(f"/t/{tenant.slug}/engines", {"q": "a07"}).text
    assert 'href="/t/acme/adapters/a07/versions/1"' in own and "<code>a07@1</code>" in own


def test_an_engine_that_did_not_start_is_named_with_the_cause(
    operator: Client, gateways: FakeGateways
) -> None:
    gateways.start_failures = [StartFailure("rack-3", "rack", "no weights in <folder>", 0.0)]
    page = operator.get("/operate/engines").content.decode()
    assert "rack-3 did not start (credential rack)" in page
    assert "no weights in &lt;folder&gt;" in page
    (told,) = operator.get("/api/v1/engines").json()["start_failures"]
    assert told == {
        "engine": "rack-3", "credential": "rack", "cause": "no weights in <folder>", "at": 0.0
    }  # fmt: skip


def test_a_gateway_that_does_not_answer_is_named(
    operator: Client, fleet: list[dict[str, Any]], gateways: FakeGateways
) -> None:
    assert "did not answer" not in operator.get(reverse("operate_engines")).content.decode()
    gateways.silent = ["http://gateway:8000"]
    page = operator.get(reverse("operate_engines")).content.decode()
    assert "http://gateway:8000 did not answer" in page
    assert operator.get("/api/v1/engines").json()["silent_gateways"] == gateways.silent


def test_an_engine_is_drained_when_it_was_confirmed(
    operator: Client, fleet: list[dict[str, Any]], gateways: FakeGateways
) -> None:
    where = f"{reverse('operate_engines-drain')}?engine=engine-1"
    assert "No other engine serves base" in operator.get(where).content.decode()
    fleet.append(ENGINE | {"id": "engine-2"})
    assert operator.get(where).context["others"] == ["engine-2"]
    assert gateways.drained == []
    assert operator.post(where)["Location"] == reverse("operate_engines")
    assert gateways.drained == ["engine-1"]
    assert operator.post(where.replace("engine-1", "engine-9")).status_code == 404


@pytest.mark.parametrize("role", ["owner", "admin", "developer", "viewer", "operator"])
def test_a_tenant_sees_whether_it_is_served_and_nothing_of_others(
    tenant: Tenant, fleet: list[dict[str, Any]], role: str, django_assert_max_num_queries: Any
) -> None:
    make_adapter(tenant)
    client = client_of(tenant, role)
    client.get(f"/t/{tenant.slug}/")
    with django_assert_max_num_queries(12):
        page = client.get(f"/t/{tenant.slug}/engines")
    ((engine, _, resident),) = page.context["rows"]
    assert engines.OPERATORS_FIELDS.isdisjoint(engine)
    assert [(one.adapter, one.digest) for one in resident.shown] == [("support", "a" * 64)]
    assert "globex" not in page.content.decode()
    assert page.context["missing"] == []
    fleet += [ENGINE | {"id": "out", "overflow": True}, ENGINE | {"id": "p", "role": "prefill"}]
    fleet[0]["draining"] = True
    page = client.get(f"/t/{tenant.slug}/engines")
    assert page.context["missing"] == ["base"], "no adapter is served by such engines alone"
    assert [page.content.decode().count(word) for word in ("Overflow", "Prefill")] == [1, 1]


def test_an_outsider_sees_no_engines_of_a_tenant(tenant: Tenant) -> None:
    assert client_of(tenant, "outsider").get(f"/t/{tenant.slug}/engines").status_code == 404


# --- audit ---------------------------------------------------------------------------------------


def test_the_log_is_of_all_tenants_filtered_and_paged(operator: Client, tenant: Tenant) -> None:
    other = make_tenant()
    for i in range(60):
        Tenant.objects.filter(pk=other.pk).update(name=f"name {i}")
    Tenant.objects.filter(pk=tenant.pk).update(weight=7)

    def listed(**query: Any) -> Any:
        return operator.get(reverse("operate_audit"), query).context

    newest = listed()
    assert newest["entries"][0][0].tenant == tenant
    assert newest["entries"][1][0].tenant == other
    older = listed(before=newest["last"].pk)
    assert len(newest["entries"]) == 50 and older["entries"][0][0].pk == newest["last"].pk - 1
    own = listed(tenant=tenant.slug, action="changed")["entries"]
    assert [change.after for _, _, changes in own for change in changes] == ["7"]
    wrong = operator.get(reverse("operate_audit"), {"since": "2026-02-02", "until": "2026-01-01"})
    assert wrong.status_code == 422


def test_a_tenants_plan_ceilings_and_suspension_are_shown(operator: Client, tenant: Tenant) -> None:
    where = reverse("operate_tenants-edit", args=[tenant.slug])
    assert "No limits." in operator.get(where).content.decode()
    LimitScope().store(LimitSet.Author.OPERATOR, {"tokens_per_day": 7000, "cost_per_day": 5})
    LimitScope(tenant).store(LimitSet.Author.OPERATOR, {"cost_per_day": 12_500_000})
    LimitScope(tenant).store(LimitSet.Author.TENANT, {"concurrent_streams": 1})
    page = operator.get(where)
    assert page.context["ceilings"] == [
        ("Tokens per day", "7,000", False), ("Cost per day", "$12.50", True),
    ]  # fmt: skip
    assert "Suspended: all its requests" not in page.content.decode()
    Tenant.objects.filter(pk=tenant.pk).update(status="suspended")
    assert "Suspended: all its requests" in operator.get(where).content.decode()


def test_a_base_model_shows_what_its_engines_run_with(
    operator: Client, fleet: list[dict[str, Any]]
) -> None:
    fleet.append(ENGINE | {"id": "other", "base_model": "else", "kv_tokens": 7})
    page = operator.get(reverse("operate_models-one", args=[make_base().pk]))
    assert [one["id"] for one in page.context["engines"]] == ["engine-1"]
    assert "65,536 tokens" in page.content.decode()


# --- isolation and errors ------------------------------------------------------------------------


@pytest.mark.usefixtures("gateways")  # real ones are looked up again after a second
def test_the_overview_shows_what_the_last_checks_of_isolation_found(
    operator: Client, db: None, django_assert_max_num_queries: Any
) -> None:
    assert "Not checked yet" in operator.get(reverse("operate")).content.decode()
    IsolationCheck.objects.create(base_model="llama", passed=True, engines=["e1"])
    IsolationCheck.objects.create(base_model="qwen", passed=False, findings=["base <said> it"])
    with django_assert_max_num_queries(12):
        page = operator.get(reverse("operate")).content.decode()
    assert '<span class="pill ok">Isolated</span>' in page and "on e1" in page
    assert '<span class="pill bad">Leaks</span>' in page and "base &lt;said&gt; it" in page
    assert "Tenants are not isolated on qwen" in page and "isolated on llama" not in page


@pytest.mark.django_db(transaction=True)
def test_an_operator_can_have_it_checked_now() -> None:
    where = reverse("operate-isolation")
    operator = client_of(make_tenant("acme"), "operator")
    for words in ("A worker is checking isolation now", "is already running"):
        assert words in operator.post(where, follow=True).content.decode()
    (job,) = ProcrastinateJob.objects.filter(task_name="check_isolation")
    assert job.status == "todo"
    assert client_of(make_tenant(), "owner").post(where).status_code == 404


def test_the_overview_counts_errors_of_all_tenants(operator: Client, tenant: Tenant) -> None:
    for one in (tenant, make_tenant()):
        met(make_key(one)[0], timezone.now(), "failed", code="engine_lost")
    (found,) = operator.get(reverse("operate")).context["failures"]
    assert (found["code"], found["count"]) == ("engine_lost", 2)


# --- default limits ------------------------------------------------------------------------------


def test_the_default_limits_are_shown_and_set(operator: Client, tenant: Tenant) -> None:
    where = reverse("operate_limits")
    body = {"operator-requests_per_minute": "600", "operator-cost_per_month": "12.5"}
    assert operator.post(where, body)["Location"] == where
    stored: Any = LimitSet.objects.get()
    assert (stored.tenant, stored.author) == (None, "operator")
    assert (stored.requests_per_minute, stored.cost_per_month) == (600, 12_500_000)
    shown = {label: value for label, _, value in operator.get(where).context["lines"]}
    assert (shown["Requests per minute"], shown["Cost per month"]) == ("600", "$12.50")
    assert shown["Tokens per day"] == "No limit"
    page = operator.get(f"/t/{tenant.slug}/limits").content.decode()
    assert "installation default" in page
    entry = AuditEntry.objects.get(kind="limits")
    assert (entry.tenant, entry.action, entry.actor_kind) == (None, "created", "user")


def test_nonsense_is_no_default(operator: Client, db: None) -> None:
    answer = operator.post(reverse("operate_limits"), {"operator-tokens_per_day": "-1"})
    assert answer.status_code == 422 and '<dialog id="edit-defaults"' in answer.content.decode()
    assert not LimitSet.objects.exists()


def test_tenants_with_ceilings_of_their_own_are_listed(operator: Client, tenant: Tenant) -> None:
    other = make_tenant("other")
    operators = LimitSet.Author.OPERATOR
    LimitScope(other).store(LimitSet.Author.TENANT, {"tokens_per_day": 5})
    LimitScope(other, key=make_key(other)[0]).store(operators, {"tokens_per_day": 5})
    where = reverse("operate_limits")
    assert "Every tenant uses the defaults" in operator.get(where).content.decode()
    LimitScope(tenant).store(operators, {"tokens_per_day": 5})
    page = operator.get(where)
    assert page.context["tenants"] == [tenant] and page.context["count"] == 1
    LimitScope(tenant).store(operators, {"tokens_per_day": None})
    assert operator.get(where).context["tenants"] == []


@pytest.mark.parametrize("role", ["owner", "outsider"])
def test_only_operators_set_default_limits(tenant: Tenant, role: str) -> None:
    body = {"operator-requests_per_minute": "1"}
    assert client_of(tenant, role).post(reverse("operate_limits"), body).status_code == 404
    assert not LimitSet.objects.exists()


def test_the_platforms_own_tenants_are_among_no_customers(operator: Client, tenant: Tenant) -> None:
    ours = [make_tenant(slug, internal=True) for slug in ISOLATION_TENANTS]
    for one in (tenant, *ours):
        use(one, cost=2)
    overview = operator.get(reverse("operate"))
    assert overview.context["tenants"] == 1 and overview.context["billed"]["requests"] == 1
    listed = operator.get(reverse("operate_tenants"))
    assert [row.slug for row in listed.context["tenants"]] == ["acme"]
    assert [slug for _, _, slug in listed.context["tenant_choices"]] == ["acme"]
    assert operator.get("/find", {"q": "lorikeet-iso"}).json()["found"] == []
    assert operator.get(reverse("operate_tenants-edit", args=[ours[0].slug])).status_code == 200


def test_operators_see_what_all_tenants_used_and_cost(operator: Client, tenant: Tenant) -> None:
    other = make_tenant("globex")
    for one, cost in (
        (tenant, 3),
        (other, 5),
        (make_tenant(ISOLATION_TENANTS[0], internal=True), 100),
    ):
        use(one, cost=cost)
    page = operator.get(reverse("operate_usage"), {"show": "cost"})
    assert [(name, int(row["cost"])) for name, row in page.context["rows"]] == [
        (other.name, 5 * PICO), (tenant.name, 3 * PICO),
    ]  # fmt: skip
    assert "$8.00" in page.text
    by_model = operator.get(reverse("operate_usage"), {"by": "base_model"})
    assert [(name, row["requests"]) for name, row in by_model.context["rows"]] == [("base", 2)]
    refused = operator.get(reverse("operate_usage"), {"by": "member"})
    assert refused.status_code == 422
    told = operator.get(reverse("operate_usage-export"), {"by": "tenant"})
    head, *lines = rows(told)
    assert head[:3] == ["start", "tenant", "requests"] and len(lines) == 2
    assert {line[1] for line in lines} == {"acme", "globex"}


def test_a_lost_gateway_is_told_on_top(operator: Client) -> None:
    said = operator.get(reverse("operate")).text
    assert "No gateway is running: no request can be answered." in said
    make_gateway("http://alive:8000")
    for url, silent in (("gone", timedelta(minutes=5)), ("old", timedelta(hours=5))):
        make_gateway(f"http://{url}:8000")
        heard = timezone.now() - silent
        GatewayProcess.objects.filter(url=f"http://{url}:8000").update(heartbeat_at=heard)
    said = operator.get(reverse("operate")).text
    assert "No gateway is running" not in said and "http://old:8000" not in said
    assert "A gateway is lost</strong>, without having shut down: <code>http://gone:8000" in said


def test_tenants_that_are_deleted_are_listed_as_such_and_only_on_demand(
    operator: Client, tenant: Tenant
) -> None:
    make_tenant("gone")
    deletion = TenantDeletion.objects.ask(
        Tenant.objects.get(slug="gone"), by="ann", by_operator=True, grace=timedelta(days=1)
    )

    def found(status: str) -> list[str]:
        page = operator.get("/operate/tenants", {"status": status} if status else {})
        return [one.slug for one in page.context["tenants"]]

    assert found("") == ["acme"] and found("suspended") == []
    assert found("being-deleted") == ["gone"] and found("any") == ["acme", "gone"]
    assertContains(operator.get("/operate/tenants", {"status": "any"}), ">Being deleted</span>")
    deletion.ended_at = timezone.now()
    deletion.save()
    assert found("deleted") == ["gone"] and found("being-deleted") == []
    assertContains(operator.get("/operate/tenants", {"status": "deleted"}), ">Deleted</span>")


@pytest.mark.parametrize(
    ("given", "stored", "shown"),
    [
        ("25 GB", 25 << 30, "25 GB"),
        ("1.5gb", 3 << 29, "1.5 GB"),
        ("1234567", 1234567, "1234567 bytes"),
        ("", None, None),
    ],
)
def test_a_storage_limit_has_a_unit(
    operator: Client, tenant: Tenant, given: str, stored: int | None, shown: str | None
) -> None:
    where = f"/operate/tenants/{tenant.slug}"
    body = {"name": "Acme", "weight": "1", "max_stored_bytes": given, "max_versions": ""}
    assert operator.post(where, body).status_code == 302
    tenant.refresh_from_db()
    assert tenant.max_stored_bytes == stored
    assert operator.get(where).context["form"]["max_stored_bytes"].value() == shown


@pytest.mark.parametrize("given", ["25 XB", "-1", "lots", "9999 TB", "1e9"])
def test_what_is_no_size_is_refused(operator: Client, tenant: Tenant, given: str) -> None:
    body = {"name": "Acme", "weight": "1", "max_stored_bytes": given}
    assert operator.post(f"/operate/tenants/{tenant.slug}", body).status_code == 422
