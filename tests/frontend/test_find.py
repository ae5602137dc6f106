"""The command palette's results: what each role finds, and nothing of other tenants."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from frontend.navigation import GO, OPERATOR, TENANT
from frontend.views.find import ACTIONS, OPERATORS_ACTIONS
from tenants.models import ApiKey, AuditEntry, Tenant
from tests.frontend.clients import address, client_of
from tests.tenants.making import make_adapter, make_key, make_member, make_tenant
from tests.tenants.spending import spend


def found(client: Client, where: str, words: str) -> list[tuple[str, str]]:
    answer = client.get(where, {"q": words})
    assert answer.status_code == 200 and answer["Cache-Control"] == "no-store"
    return [(one["kind"], one["title"]) for one in answer.json()["found"]]


@pytest.fixture
def full(tenant: Tenant) -> Tenant:
    """A tenant that, like another one, has an adapter and a key with `blue` in their names."""
    other = make_tenant("blue-other")
    for one in (tenant, other):
        make_adapter(one, f"blue-{one.slug}")
        key, _ = make_key(one)
        type(key).objects.filter(pk=key.pk).update(name=f"Blue {one.slug}")
    make_key(tenant)[0].revoke()
    return tenant


def test_every_page_of_the_sidebar_has_a_key_of_its_own() -> None:
    pages = [entry.page for entry in TENANT] + [page for page, *_ in OPERATOR]
    assert sorted(GO) == sorted(pages)
    assert len(set(GO.values())) == len(GO) and "g" not in GO.values()


@pytest.mark.parametrize("role", ["owner", "admin", "developer", "viewer"])
def test_members_find_what_is_their_tenants(
    full: Tenant, role: str, django_assert_max_num_queries: Any
) -> None:
    client = client_of(full, role)
    with django_assert_max_num_queries(12):
        names = found(client, address(full, "find"), "bLUE")
    assert names == [("Adapter", "blue-acme"), ("API key", "Blue acme")]
    assert found(client, address(full, "find"), "acme")[-1] == ("Tenant", "Acme")


def test_without_words_there_are_the_pages_that_one_may_see(full: Tenant) -> None:
    of_owner = found(client_of(full, "owner"), address(full, "find"), "")
    assert of_owner == [("Acme", entry.title) for entry in TENANT]
    of_viewer = found(client_of(full, "viewer"), address(full, "find"), " ")
    assert ("Acme", "Audit log") not in of_viewer and ("Acme", "Usage") in of_viewer


def test_an_operator_finds_all_tenants_and_his_own_pages(full: Tenant) -> None:
    client = client_of(full, "operator")
    assert found(client, "/find", "") == [("Installation", title) for _, title, *_ in OPERATOR]
    assert found(client, "/find", "blue") == [("Tenant", "Blue-Other")]
    assert found(client, "/find", "price") == [("Installation", "Prices")]
    assert not AuditEntry.objects.filter(action="viewed").exists()
    assert ("Adapter", "blue-acme") in found(client, address(full, "find"), "blue")
    assert AuditEntry.objects.filter(action="viewed", tenant=full).exists()


def test_others_find_no_tenant_but_their_own(full: Tenant) -> None:
    assert client_of(full, "outsider").get(address(full, "find")).status_code == 404
    assert found(client_of(full, "outsider"), "/find", "acme") == []
    assert client_of(full, "nobody").get("/find").status_code == 302


def test_results_link_to_their_pages(full: Tenant) -> None:
    client = client_of(full, "owner")
    answer = client.get(address(full, "find"), {"q": "blue"}).json()["found"]
    assert [client.get(one["url"]).status_code for one in answer] == [200, 200]
    assert answer[1]["url"] == "/t/acme/keys?q=Blue+acme"


def test_results_are_bounded_and_any_words_are_accepted(tenant: Tenant) -> None:
    for i in range(9):
        make_adapter(tenant, f"many-{i}")
    client = client_of(tenant, "owner")
    assert len(found(client, address(tenant, "find"), "many")) == 6
    assert found(client, address(tenant, "find"), "many\0" + "x" * 5000) == []
    assert found(client, address(tenant, "find"), "%") == []


def test_the_shell_has_palette_and_keys(tenant: Tenant) -> None:
    page = client_of(tenant, "viewer").get(address(tenant, "overview")).content.decode()
    assert f'data-url="/t/{tenant.slug}/find"' in page and 'role="combobox"' in page
    assert "<kbd>g</kbd> <kbd>u</kbd>" in page and "<kbd>g</kbd> <kbd>h</kbd>" not in page
    home = Client()
    home.force_login(make_member(tenant, "owner"))
    user: Any = home.get("/account/email/").wsgi_request.user
    Tenant.objects.create(slug="more", name="More").memberships.create(user=user, role="viewer")
    assert 'data-url="/find"' in home.get("/").content.decode()


def test_actions_are_those_that_one_may_take(tenant: Tenant) -> None:
    where = address(tenant, "find")
    owner, viewer = client_of(tenant, "owner"), client_of(tenant, "viewer")
    assert found(owner, where, "create k") == [("Action", "Create key")]
    assert found(viewer, where, "create k") == []
    assert ("Action", "Invite member") in found(owner, where, "invite")
    assert found(owner, where, "")[-1][0] != "Action"
    for title, page, opened, _ in ACTIONS:
        (told,) = [
            one
            for one in owner.get(where, {"q": title}).json()["found"]
            if one["title"] == title and one["kind"] == "Action"
        ]
        assert told["url"] == reverse(page, args=[tenant.slug]) + (opened and f"#{opened}")
        body = owner.get(told["url"]).content.decode()
        assert not opened or (f'data-opens="{opened}"' in body and f'<dialog id="{opened}"' in body)


def test_an_operator_may_act_on_the_installation(tenant: Tenant) -> None:
    operator = client_of(tenant, "operator")
    for title, page, opened in OPERATORS_ACTIONS:
        assert ("Action", title) not in found(client_of(tenant, "owner"), "/find", title)
        (told,) = [
            one
            for one in operator.get("/find", {"q": title}).json()["found"]
            if one["title"] == title
        ]
        assert told["url"] == f"{reverse(page)}#{opened}"
        body = operator.get(told["url"]).content.decode()
        assert f'data-opens="{opened}"' in body and f'<dialog id="{opened}"' in body


def test_a_request_is_found_by_its_whole_id(tenant: Tenant, key: ApiKey) -> None:
    event = spend(key, timezone.now())
    owner = client_of(tenant, "owner")
    assert found(owner, address(tenant, "find"), f"req_{event.id}") == [
        ("Request", f"req_{event.id}")
    ]
    (one,) = owner.get(address(tenant, "find"), {"q": event.id}).json()["found"]
    assert [row.event.id for row in owner.get(one["url"]).context["rows"]] == [event.id]
    assert found(owner, address(tenant, "find"), event.id[:9]) == []
