"""Secrets are shown once, on a page that can be reloaded without creating another one."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from frontend import shown_once
from tenants.models import ApiKey, EngineCredential, Invitation, Tenant
from tests.frontend.clients import address, client_of, user_of
from tests.tenants.making import make_key, make_member

KEY = {"name": "billing", "scopes": ["inference"], "lane": "interactive"}


def made_by(client: Client, where: str, body: dict[str, Any]) -> tuple[str, str]:
    """The address to which the form redirects, and the secret that is shown there."""
    answer = client.post(where, body)
    assert answer.status_code == 302, answer.content
    page = client.get(answer["Location"])
    return answer["Location"], page.context["shown_once"].text


def test_a_page_loaded_again_makes_and_shows_nothing(tenant: Tenant, operator: Client) -> None:
    owner, (old, _) = client_of(tenant, "owner"), make_key(tenant)
    member = make_member(tenant, "viewer")
    forms: list[tuple[Client, str, dict[str, Any]]] = [
        (owner, address(tenant, "keys"), KEY),
        (owner, address(tenant, f"keys/{old.pk}/rotate"), {"overlap": "1"}),
        (owner, address(tenant, "members"), {"role": "viewer", "note": "Bo"}),
        (operator, f"/operate/users/{member.pk}/password", {}),
        (operator, "/operate/engines/credentials", {"name": "rack-1"}),
    ]
    for client, where, body in forms:
        page, text = made_by(client, where, body)
        counts = [kind.objects.count() for kind in (ApiKey, Invitation, EngineCredential)]
        again = client.get(page)
        assert again.status_code == 200 and text not in again.text
        assert counts == [kind.objects.count() for kind in (ApiKey, Invitation, EngineCredential)]


def test_the_text_is_for_its_page_and_its_person_alone(tenant: Tenant) -> None:
    owner, other = client_of(tenant, "owner"), client_of(tenant, "owner")
    made = owner.post(address(tenant, "keys"), KEY)
    cookie = made.cookies[shown_once.COOKIE]
    assert cookie["httponly"] and cookie["path"] == address(tenant, "keys")
    assert cookie["samesite"] == "Strict" and int(cookie["max-age"]) <= 60
    assert "lk_" not in cookie.value
    other.cookies[shown_once.COOKIE] = cookie.value
    assert other.get(address(tenant, "keys")).context["shown_once"] is None
    elsewhere = Client()
    elsewhere.force_login(user_of(owner))
    elsewhere.cookies[shown_once.COOKIE] = cookie.value
    assert elsewhere.get(address(tenant, "members")).context["shown_once"] is None
    assert owner.get(address(tenant, "keys")).context["shown_once"] is not None


@pytest.mark.parametrize("nonsense", ["", "x", "gAAAAA"])
def test_another_cookie_shows_nothing(tenant: Tenant, nonsense: str) -> None:
    owner = client_of(tenant, "owner")
    owner.cookies[shown_once.COOKIE] = nonsense
    assert owner.get(address(tenant, "keys")).context["shown_once"] is None
