"""Saved prompts of the playground, and the models that its address names."""

from __future__ import annotations

import pytest
from django.test import Client

from tenants.models import Tenant
from tests.frontend.clients import address, client_of, user_of


def test_each_model_in_the_address_has_a_pane(tenant: Tenant, admin: Client) -> None:
    where = address(tenant, "playground")
    page = admin.get(f"{where}?model=support@1&model=support@2&model=")
    assert page.context["asked"] == [{"model": "support@1"}, {"model": "support@2"}]
    assert page.context["model"] == "support@1"
    assert admin.get(f"{where}?model=support").context["asked"] is None
    many = admin.get(where + "?" + "&".join(f"model=m{n}" for n in range(9)))
    assert len(many.context["asked"]) == 4


def test_prompts_are_ones_own_or_shared(tenant: Tenant) -> None:
    owner, other = client_of(tenant, "owner"), client_of(tenant, "developer")
    where = address(tenant, "playground/prompts")

    def names(client: Client) -> list[tuple[str, str]]:
        prompts = client.get(address(tenant, "playground")).context["prompts"]
        return [(one["name"], one["by"]) for one in prompts]

    hello = {"name": "Hello", "text": "Dear {{ name }}", "system": "Be kind."}
    made = owner.post(where, hello)
    assert made.status_code == 200 and made.json()["text"] == "Dear {{ name }}"
    owner.post(where, {"name": "Ours", "text": "x", "shared": "on"})
    assert names(owner) == [("Hello", ""), ("Ours", "")]
    assert names(other) == [("Ours", user_of(owner).username)]
    assert owner.post(where, hello | {"text": "Hi"}).json()["id"] == made.json()["id"]
    for wrong in ({"name": ""}, {"text": ""}, {"text": "x" * 20_001}, {"name": "x" * 81}):
        assert owner.post(where, hello | wrong).status_code == 422
    drop = f"{where}/{made.json()['id']}/delete"
    assert other.post(drop).status_code == 404 and owner.post(drop).status_code == 200
    assert names(owner) == [("Ours", "")]
    assert client_of(tenant, "outsider").post(where, hello).status_code == 404
    assert client_of(tenant, "operator").post(where, hello).status_code == 403


def test_prompts_are_limited(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenants.models.saved.prompts.MAX_PROMPTS", 2)
    owner, where = client_of(tenant, "owner"), address(tenant, "playground/prompts")
    sent = [owner.post(where, {"name": f"p{n}", "text": "x"}).status_code for n in (1, 2, 3, 1)]
    assert sent == [200, 200, 409, 200]
