"""The Django admin shows everything but secrets, and keeps the rules."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.test import Client

from tenants.models import AdapterVersion, ApiKey, Membership, Tenant, UsageEvent
from tests.tenants.making import make_key, make_member, make_user

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
    UsageEvent.objects.create(
        id="u", started_at=key.created_at, tenant=key.tenant, key=key, model="m", base_model="m",
        engine_id="e", prompt_tokens=1, cached_tokens=0, completion_tokens=1, reasoning_tokens=0,
        finish_reason="stop", queue_s=0, load_s=0, total_s=1,
    )  # fmt: skip
    assert admin.site.is_registered(model)
    assert operator.get(url(model), {"q": "a"}).status_code == 200
    for row in model.objects.all():
        page = operator.get(url(model, row.pk, "change"))
        assert page.status_code == 200
        shown = page.content.decode()
        assert text.rpartition("_")[2] not in shown
        for secret in (bytes(key.secret_hmac), bytes(key.tenant.cache_secret)):
            assert secret.hex() not in shown and repr(secret) not in shown


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_only_operators_get_in(tenant: Tenant, model: Any) -> None:
    client = Client()
    client.force_login(make_member(tenant, "owner"))
    assert client.get(url(model)).status_code == 302


def test_a_new_keys_text_is_shown_once(operator: Client, tenant: Tenant) -> None:
    body = {"tenant": tenant.pk, "name": "ci", "scopes": ["inference", "usage:read"]}
    page = operator.post(url(ApiKey, "add"), body, follow=True)
    key = ApiKey.objects.get()
    told = [str(message) for message in page.context["messages"]]
    (text,) = [message.split()[-1] for message in told if "shown this once" in message]
    assert ApiKey.objects.find(text) == key
    assert key.created_by is not None and key.allowed_models is None
    assert text not in operator.get(url(ApiKey)).content.decode()
    operator.post(url(ApiKey, key.pk, "change"), {"name": "new", "scopes": ["inference"]})
    changed = ApiKey.objects.get()
    assert (changed.name, changed.scopes, changed.prefix) == ("new", ["inference"], key.prefix)


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
