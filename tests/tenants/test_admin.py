"""The Django admin shows everything but secrets, and keeps the rules."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.test import Client
from django.utils import timezone

from tenants.models import (
    Adapter,
    AdapterVersion,
    ApiKey,
    IdempotentAnswer,
    LimitSet,
    Membership,
    Price,
    Tenant,
    UsageEvent,
    UsageMonth,
    UsageRollup,
)
from tests.tenants.making import make_key, make_member, make_tenant, make_user
from tests.tenants.spending import spend

pytestmark = pytest.mark.django_db
MODELS = list(apps.get_app_config("tenants").get_models())


@pytest.fixture
def operator(settings: Any) -> Client:
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}
    client = Client()
    client.force_login(make_user("op", is_staff=True, is_superuser=True))
    return client


def url(model: type, *rest: object) -> str:
    return "/".join(["/admin/tenants", model.__name__.lower(), *map(str, rest), ""])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_model_has_its_pages(operator: Client, live: AdapterVersion, model: Any) -> None:
    key, text = make_key(live.adapter.tenant)
    make_member(live.adapter.tenant, "owner")
    spend(key)
    Price.objects.create(
        adapter=live.adapter, starts_at=key.created_at, prompt=2, cached_prompt=1, output=3
    )
    assert admin.site.is_registered(model)
    assert operator.get(url(model), {"q": "a"}).status_code == 200
    for row in model.objects.all():
        page = operator.get(url(model, row.pk, "change"))
        assert page.status_code == 200
        shown = page.content.decode()
        assert text.rpartition("_")[2] not in shown
        for secret in (bytes(key.secret_hmac), bytes(key.tenant.cache_secret)):
            assert secret.hex() not in shown and repr(secret) not in shown


def test_a_list_of_answers_reads_none_of_them(
    operator: Client, tenant: Tenant, django_assert_max_num_queries: Any
) -> None:
    """A page of them may be 400 MB."""
    now = timezone.now()
    IdempotentAnswer.objects.create(
        key=make_key(tenant)[0], name="order 17", body_digest=b"", claimed_until=now, created_at=now
    )
    with django_assert_max_num_queries(12) as queries:
        page = operator.get(url(IdempotentAnswer))
    assert "order 17" in page.content.decode()
    assert not [query for query in queries if '"answer"' in query["sql"]]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_only_operators_get_in(tenant: Tenant, model: Any) -> None:
    client = Client()
    client.force_login(make_member(tenant, "owner"))
    assert client.get(url(model)).status_code == 302


def test_a_new_keys_text_is_shown_once(operator: Client, tenant: Tenant) -> None:
    body = {"tenant": tenant.pk, "name": "ci", "scopes": ["inference", "usage:read"]}
    body["lane"] = "batch"
    page = operator.post(url(ApiKey, "add"), body, follow=True)
    key = ApiKey.objects.get()
    told = [str(message) for message in page.context["messages"]]
    (text,) = [message.split()[-1] for message in told if "shown this once" in message]
    assert ApiKey.objects.find(text) == key
    assert key.created_by is not None and key.allowed_models is None
    assert text not in operator.get(url(ApiKey)).content.decode()
    assert key.lane == "batch"
    body = {"name": "new", "scopes": ["inference"], "lane": "interactive"}
    operator.post(url(ApiKey, key.pk, "change"), body)
    changed = ApiKey.objects.get()
    assert (changed.name, changed.scopes, changed.prefix) == ("new", ["inference"], key.prefix)
    assert changed.lane == "interactive"


def test_keys_are_revoked_not_deleted(operator: Client, tenant: Tenant) -> None:
    key, _ = make_key(tenant)
    operator.post(url(ApiKey), {"action": "revoke", "_selected_action": [key.pk]})
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert operator.post(url(ApiKey, key.pk, "delete"), {"post": "yes"}).status_code == 403


def test_the_last_owner_stays(operator: Client, tenant: Tenant) -> None:
    member = Membership.objects.get(user=make_member(tenant, "owner"))
    page = operator.post(url(Membership, member.pk, "change"), {"role": "viewer"})
    assert "keeps at least one owner" in page.content.decode()
    assert operator.post(url(Membership, member.pk, "delete"), {"post": "yes"}).status_code == 403
    make_member(tenant, "owner")
    operator.post(url(Membership, member.pk, "change"), {"role": "viewer"})
    assert list(Membership.objects.owners().exclude(pk=member.pk)) == list(
        Membership.objects.owners()
    )
    assert operator.post(url(Membership, member.pk, "delete"), {"post": "yes"}).status_code == 302
    assert not Membership.objects.filter(pk=member.pk).exists()


def test_versions_are_read_only(operator: Client, live: AdapterVersion) -> None:
    page = operator.post(url(AdapterVersion, live.pk, "change"), {"digest": "f" * 64})
    assert page.status_code == 403
    assert operator.post(url(AdapterVersion, live.pk, "delete"), {"post": "yes"}).status_code == 403


def test_an_adapter_is_pinned_and_nothing_else(operator: Client, live: AdapterVersion) -> None:
    page = url(Adapter, live.adapter.pk, "change")
    assert operator.post(page, {"pinned": "on", "name": "other"}).status_code == 302
    (adapter,) = Adapter.objects.all()
    assert (adapter.pinned, adapter.name) == (True, "support")


def test_limits_are_set_for_one_scope_of_one_tenant(operator: Client, live: AdapterVersion) -> None:
    acme, foreign = live.adapter.tenant, make_key(make_tenant("other"))[0]
    add = url(LimitSet, "add")

    def refusal(**body: Any) -> str:
        page = operator.post(add, {"author": "operator", "tenant": acme.pk, **body})
        assert page.status_code == 200
        return page.content.decode()

    assert "This is not the tenant&#x27;s key." in refusal(key=foreign.pk)
    assert "less than or equal to 1000000000000" in refusal(tokens_per_day=10**12 + 1)
    assert "limits_of_one_scope" in refusal(key=make_key(acme)[0].pk, adapter=live.adapter.pk)
    assert not LimitSet.objects.exists()
    body = {"author": "operator", "tenant": acme.pk, "tokens_per_day": 10**12}
    assert operator.post(add, body).status_code == 302
    limits = LimitSet.objects.get()
    assert (limits.tenant, limits.tokens_per_day) == (acme, 10**12)
    assert "already exists" in refusal(tokens_per_day=5)
    assert "acme (operator)" in operator.get(url(LimitSet), {"q": "acm"}).content.decode()
    change = url(LimitSet, limits.pk, "change")
    assert operator.post(change, {"author": "tenant", "tokens_per_minute": 7}).status_code == 302
    limits.refresh_from_db()
    assert (limits.author, limits.tokens_per_minute, limits.tokens_per_day) == ("operator", 7, None)


def test_an_event_is_found_by_its_id_alone(operator: Client, tenant: Tenant) -> None:
    """A page of all events would read the whole ledger."""
    event = spend(make_key(tenant)[0], model="the-model")

    def shown(**query: str) -> bool:
        return f"{event.id}/change" in operator.get(url(UsageEvent), query).content.decode()

    assert shown(q=event.id) and shown(q=f" req_{event.id}")
    assert not shown() and not shown(q="the-model") and not shown(q=event.id[:-1])


def test_what_a_bill_names_may_be_gone(operator: Client, live: AdapterVersion) -> None:
    key = make_key(live.adapter.tenant)[0]
    event = spend(key, version=live, adapter="support", model="support")
    key.delete()
    live.adapter.aliases.all().delete()
    live.adapter.retire()
    for row in (event, *UsageRollup.objects.all(), *UsageMonth.objects.all()):
        page = operator.get(url(type(row), row.pk, "change"))
        assert page.status_code == 200 and "support" in page.content.decode()
    assert operator.get(url(UsageEvent), {"q": event.id}).status_code == 200
