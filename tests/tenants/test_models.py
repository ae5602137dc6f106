"""The rules of tenants, members, keys and versions, in the models and in the database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models import ProtectedError
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from inference.errors import InvalidApiKey
from tenants.errors import AdapterInUse, IllegalTransition, LastOwner, VersionInUse
from tenants.models import (
    Adapter,
    AdapterVersion,
    Alias,
    ApiKey,
    Membership,
    Role,
    State,
    Tenant,
    User,
)
from tests.tenants.making import (
    make_adapter,
    make_key,
    make_member,
    make_tenant,
    make_user,
    make_version,
)

pytestmark = pytest.mark.django_db


def refused(write: Callable[[], Any], constraint: str) -> None:
    """Assert that the database itself refuses the write, by the constraint of that name."""
    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        write()
        connection.check_constraints()
    cause = caught.value.__cause__
    assert isinstance(cause, psycopg.Error)
    assert constraint in str(caught.value) + repr(cause.diag.constraint_name)


# --- Tenants and members -------------------------------------------------------------------------


@pytest.mark.parametrize("slug", ["", "Acme", "a/b", "a@b", "-a", "a b", "a\n", "ä"])
def test_a_slug_is_safe_in_names(slug: str) -> None:
    refused(lambda: Tenant.objects.create(slug=slug, name="x"), "tenant_slug_form")


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_weight_is_a_positive_number(weight: float) -> None:
    refused(
        lambda: Tenant.objects.create(slug="a", name="x", weight=weight), "tenant_weight_in_bounds"
    )


def test_a_slug_is_one_tenants(tenant: Tenant) -> None:
    refused(lambda: Tenant.objects.create(slug="acme", name="x"), "slug")


def test_a_status_is_known(tenant: Tenant) -> None:
    refused(lambda: Tenant.objects.update(status="odd"), "tenant_status_known")


def test_a_salt_is_the_tenants_own_and_stays(tenant: Tenant) -> None:
    again, other = Tenant.objects.get(pk=tenant.pk), make_tenant()
    assert tenant.salt == again.salt != other.salt
    assert bytes(tenant.cache_secret).hex() not in tenant.salt
    other.cache_secret = tenant.cache_secret
    assert other.salt != tenant.salt


def test_who_sees_a_tenant(tenant: Tenant) -> None:
    viewer, outsider = make_member(tenant, "viewer"), make_member(make_tenant(), "owner")
    operator, left = make_user(is_staff=True), make_member(tenant, "owner")
    User.objects.filter(pk=left.pk).update(is_active=False)
    left.refresh_from_db()
    seen = [Tenant.objects.visible_to(user).count() for user in (viewer, outsider, operator, left)]
    assert seen == [1, 1, 2, 0]
    assert not Tenant.objects.visible_to(outsider).filter(pk=tenant.pk).exists()


def test_a_user_is_a_member_once(tenant: Tenant) -> None:
    user = make_member(tenant, "viewer")
    refused(
        lambda: Membership.objects.create(user=user, tenant=tenant, role="owner"),
        "membership_once_per_user",
    )
    refused(lambda: Membership.objects.update(role="king"), "membership_role_known")


def test_the_last_owner_stays(tenant: Tenant) -> None:
    make_member(tenant, "admin")
    owner = Membership.objects.get(user=make_member(tenant, "owner"))
    for leave in (owner.remove, lambda: owner.change_role(Role.ADMIN)):
        with pytest.raises(LastOwner):
            leave()
    owner.change_role(Role.OWNER)
    Membership.objects.get(user=make_member(tenant, "owner")).remove()
    with pytest.raises(LastOwner):
        owner.remove()
    with pytest.raises(ProtectedError):
        owner.user.delete()


def test_the_database_keeps_the_last_owner_too(tenant: Tenant) -> None:
    make_member(tenant, "owner")
    refused(lambda: Membership.objects.update(role="viewer"), "membership_last_owner")
    refused(lambda: Membership.objects.all().delete(), "membership_last_owner")
    refused(lambda: Membership.objects.update(tenant=make_tenant()), "membership_last_owner")


def test_a_tenant_without_usage_can_go_with_its_owner(tenant: Tenant) -> None:
    make_member(tenant, "owner")
    tenant.delete()
    connection.check_constraints()
    assert not Membership.objects.exists()


# --- Keys ----------------------------------------------------------------------------------------


def test_a_key_is_stored_without_its_text(tenant: Tenant) -> None:
    key, text = make_key(tenant)
    assert text.startswith(f"lk_{key.prefix}_") and len(text) == 3 + 12 + 1 + 43
    with connection.cursor() as cursor:
        cursor.execute("SELECT k::text, secret_hmac FROM tenants_apikey k")
        stored, digest = cursor.fetchone()
    secret = text.rpartition("_")[2]
    assert secret not in stored and len(digest) == 32
    assert ApiKey.objects.find(text) == key


def test_a_key_is_found_by_its_complete_text_only(tenant: Tenant) -> None:
    key, text = make_key(tenant)
    other = make_key(tenant)[1]
    crossed = f"lk_{key.prefix}_{other.rpartition('_')[2]}"
    for wrong in (text[:-1], text + "x", crossed, "", f"lk_{key.prefix}_", text.lower(), "lk_é"):
        assert ApiKey.objects.find(wrong) is None


def test_the_pepper_is_part_of_the_hmac(tenant: Tenant, settings: Any) -> None:
    _, text = make_key(tenant)
    settings.KEY_PEPPER = "another pepper of some thirty-two characters"
    assert ApiKey.objects.find(text) is None


@pytest.mark.parametrize("scopes", [[], ["everything"], ["inference", "root"]])
def test_scopes_are_known_and_not_empty(tenant: Tenant, scopes: list[str]) -> None:
    refused(lambda: ApiKey.objects.issue(tenant, name="k", scopes=scopes), "apikey_scopes_known")


def test_which_keys_are_usable(tenant: Tenant) -> None:
    now = timezone.now()
    key, _ = make_key(tenant, expires_at=now + timedelta(hours=1))

    def usable(at: Any = now) -> bool:
        return ApiKey.objects.get(pk=key.pk).usable(at)

    assert usable()
    assert not usable(now + timedelta(hours=1))
    Tenant.objects.update(status="suspended")
    assert not usable()
    Tenant.objects.update(status="active")
    key.revoke()
    assert not usable()


def test_revoking_again_keeps_the_first_time(tenant: Tenant) -> None:
    key, _ = make_key(tenant)
    key.revoke()
    first = key.revoked_at
    key.revoke()
    assert key.revoked_at == first is not None


def test_last_use_is_written_once_a_minute(tenant: Tenant) -> None:
    make_key(tenant)
    now = timezone.now()
    written = [
        ApiKey.objects.all().touch(now + timedelta(seconds=seconds)) for seconds in (0, 59, 60)
    ]
    assert written == [1, 0, 1]


def test_a_key_authenticates_while_it_is_usable(
    tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    key, text = make_key(tenant)
    now = timezone.now()
    assert ApiKey.objects.authenticate(text, now).pk == key.pk
    with django_assert_num_queries(1):
        assert ApiKey.objects.authenticate(text, now + timedelta(seconds=59)).last_used_at == now
    with pytest.raises(InvalidApiKey, match="Incorrect"):
        ApiKey.objects.authenticate(text + "x", now)
    key.revoke()
    with pytest.raises(InvalidApiKey, match="revoked"):
        ApiKey.objects.authenticate(text, now + timedelta(hours=1))
    assert ApiKey.objects.get(pk=key.pk).last_used_at == now


# --- Adapters and versions -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a@b", "Upper", ".hidden", "a/b", "x" * 64, "a\n"])
def test_an_adapters_name_is_a_models_name(tenant: Tenant, name: str) -> None:
    base = make_adapter(tenant).base_model
    adapter = Adapter(tenant=tenant, name=name, base_model=base)
    with pytest.raises(ValidationError):
        adapter.full_clean()
    if len(name) < 64:
        refused(adapter.save, "adapter_name_form")


def test_an_adapters_name_is_no_base_models(tenant: Tenant) -> None:
    base = make_adapter(tenant).base_model
    with pytest.raises(ValidationError, match="base model already has this name"):
        Adapter(tenant=tenant, name=base.name, base_model=base).full_clean()


def test_two_tenants_may_use_one_name(tenant: Tenant) -> None:
    make_adapter(tenant)
    make_adapter(make_tenant())
    refused(lambda: make_adapter(tenant), "adapter_name_unique")


def test_content_makes_the_version(adapter: Adapter) -> None:
    first, new = adapter.add_version("a" * 64)
    again, same = adapter.add_version("a" * 64)
    second, _ = adapter.add_version("b" * 64)
    assert (first.number, second.number, again.pk) == (1, 2, first.pk)
    assert (new, same, first.state) == (True, False, State.UPLOADING)
    assert first.lora_name == f"acme/support@{'a' * 64}"


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"digest": "a" * 63}, "version_digest_form"),
        ({"digest": "A" * 64}, "version_digest_form"),
        ({"number": 0}, "version_number_positive"),
        ({"number": 7}, "version_number_unique"),
        ({"digest": "7" * 64}, "version_digest_unique"),
        ({"state": "odd"}, "version_state_known"),
        ({"size_bytes": -1}, "size_bytes"),
    ],
)
def test_version_constraints(adapter: Adapter, fields: dict[str, Any], constraint: str) -> None:
    adapter.versions.create(number=7, digest="7" * 64)
    valid = {"number": 8, "digest": "8" * 64}
    refused(lambda: adapter.versions.create(**valid | fields), constraint)


@pytest.mark.parametrize("field", ["digest", "number", "adapter"])
def test_a_version_never_becomes_another(live: AdapterVersion, field: str) -> None:
    other = make_adapter(live.adapter.tenant, "other")
    value = {"digest": "f" * 64, "number": 99, "adapter": other}[field]
    refused(
        lambda: AdapterVersion.objects.filter(pk=live.pk).update(**{field: value}),
        "version_is_immutable",
    )


LEGAL = {
    ("uploading", "uploading"), ("uploading", "validating"), ("uploading", "rejected"),
    ("validating", "validating"), ("validating", "probing"), ("validating", "rejected"),
    ("probing", "validating"), ("probing", "probing"), ("probing", "ready"),
    ("probing", "rejected"), ("ready", "ready"), ("ready", "archived"),
    ("rejected", "rejected"), ("rejected", "archived"), ("archived", "archived"),
    ("archived", "validating"),
}  # fmt: skip


@pytest.mark.parametrize("source", State.values)
@pytest.mark.parametrize("to", State.values)
def test_the_states_of_a_version(adapter: Adapter, source: str, to: str) -> None:
    version = make_version(adapter, state=State(source))
    if (source, to) in LEGAL:
        version.advance(State(to), report={"seen": True})
        assert (version.state, version.report) == (to, {"seen": True})
    else:
        with pytest.raises(IllegalTransition, match=f"is {source} cannot become {to}"):
            version.advance(State(to), report={"seen": True})
        version.refresh_from_db()
        assert (version.state, version.report) == (source, {})


def test_the_first_ready_version_goes_live_by_itself(adapter: Adapter) -> None:
    first, second = (make_version(adapter, state=State.PROBING) for _ in range(2))
    first.become_ready(report={"ok": True})
    second.become_ready()
    assert adapter.aliases.get().version == first
    first.refresh_from_db()
    assert first.report == {"ok": True}


def test_a_version_in_use_is_not_archived(live: AdapterVersion) -> None:
    with pytest.raises(VersionInUse):
        live.archive()
    live.refresh_from_db()
    assert live.state == State.READY
    live.aliases.all().delete()
    live.archive()
    assert live.state == State.ARCHIVED


def test_an_adapter_in_use_is_not_deleted(live: AdapterVersion) -> None:
    with pytest.raises(AdapterInUse):
        live.adapter.retire()
    Alias.objects.all().delete()
    live.adapter.retire()
    assert not AdapterVersion.objects.exists()
