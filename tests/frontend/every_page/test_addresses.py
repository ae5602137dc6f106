"""The list of pages over which other tests iterate."""

from __future__ import annotations

import pytest
from django.utils import timezone

from tenants.models import Conversation, Membership, Tenant
from tests.frontend.addresses import PASSING, Subject, names, pages, pages_of, parts
from tests.tenants.making import (
    make_adapter,
    make_batch,
    make_eval,
    make_eval_run,
    make_key,
    make_member,
    make_rollout,
    make_route,
    make_tuning_job,
    make_version,
)
from tests.tenants.spending import spend


@pytest.fixture
def full(tenant: Tenant) -> Tenant:
    """A tenant with one of everything that pages show."""
    adapter = make_adapter(tenant)
    make_version(adapter)
    make_rollout(adapter.base_model)
    key, _ = make_key(tenant)
    spend(key, timezone.now())
    make_batch(key)
    eval = make_eval(tenant)
    make_eval_run(eval, key)
    make_eval_run(eval, key)
    make_tuning_job(tenant)
    make_route(tenant)
    member = Membership.objects.get(user=make_member(tenant, "developer"))
    Conversation.objects.keep(member, "Plans", "[]").share()
    return tenant


def test_every_address_is_in_one_of_the_lists(full: Tenant) -> None:
    listed = {page.name for page in [*pages(full), *parts(full)]}
    assert set(names()) - listed <= PASSING


def test_roles_are_those_that_the_page_lets_in(full: Tenant) -> None:
    found: dict[str, set[str]] = {}
    for page in pages(full):
        found.setdefault(page.name, set()).add(page.role)
    assert found["overview"] == {"viewer", "developer", "admin", "owner", "operator"}
    assert found["audit"] == {"admin", "owner", "operator"}
    assert found["operate"] == {"operator"}
    assert found["account_login"] == {"nobody"}


def test_changes_are_no_pages(full: Tenant) -> None:
    assert not {"keys-revoke", "adapters-promote", "operate_tenants-suspend"} & set(names())


def test_pages_of_what_is_not_there_are_left_out() -> None:
    found = {page.name for page in pages_of(Subject("acme"))}
    assert "adapters" in found and "adapters-version" not in found and "limits-key" not in found
