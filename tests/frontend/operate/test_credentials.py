"""The operator's pages of engines' credentials and of quarantined entries."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from django.urls import reverse

from inference.link.accounts import Account, LedgerEntry, Usage
from tenants.models import EngineCredential, QuarantinedEntry, Tenant, UsageEvent
from tests.frontend.clients import client_of
from tests.tenants.making import make_key, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)
CREDENTIALS = "operate_engines-credentials"


def secret_in(page: str) -> str | None:
    found = re.search(r"le_[A-Za-z0-9]{12}_[A-Za-z0-9]{43}", page)
    return found[0] if found else None


def test_a_credential_is_made_and_shown_once() -> None:
    operator = client_of(make_tenant("acme"), "operator")
    url = reverse(CREDENTIALS)
    assert "No credentials yet." in operator.get(url).content.decode()
    answer = operator.post(url, {"name": "gpu-1", "pools": "llama, qwen"}, follow=True)
    text = secret_in(answer.content.decode())
    credential = EngineCredential.objects.get()
    assert text is not None and credential.matches(text)
    assert credential.pools == ["llama", "qwen"]
    assert "no-store" in answer["Cache-Control"]
    page = operator.get(url).content.decode()
    assert secret_in(page) is None and f"le_{credential.prefix}" in page
    refused = operator.post(url, {"name": "gpu-1", "pools": ""})
    assert refused.status_code == 422 and b"has this name" in refused.content
    rotate = reverse("operate_engines-rotate", args=[credential.pk])
    rotated = operator.post(rotate, follow=True)
    assert credential.matches(text) and secret_in(rotated.content.decode()) not in (None, text)
    operator.post(reverse("operate_engines-revoke", args=[credential.pk]))
    assert not EngineCredential.objects.live().exists()
    gone = operator.post(reverse("operate_engines-rotate", args=[credential.pk]), follow=True)
    assert b"A revoked credential cannot be changed" in gone.content


def quarantined(tenant: Tenant, id: str, **fields: Any) -> QuarantinedEntry:
    at = datetime(2026, 5, 1, tzinfo=UTC).timestamp()
    account = Account(tenant.pk, make_key(tenant)[0].pk, at, "base", price=(1, 1, 1))
    account = msgspec.structs.replace(account, **fields)
    entry = LedgerEntry(id, account, "base", Usage(5, 0, 10**9), "stop")
    return QuarantinedEntry.objects.create(
        engine_id="e1", journal="j1", key=id, request_id=id, attempt=1, reason="over_bounds",
        prompt_tokens=5, completion_tokens=10**9, entry=msgspec.json.encode(entry).decode(),
    )  # fmt: skip


def shown(page: Any) -> list[str]:
    """The requests in the list."""
    return re.findall(r"<code>(r\d)</code>", page.content.decode())


def test_what_is_quarantined_is_shown_and_decided() -> None:
    acme, globex = make_tenant("acme"), make_tenant("globex")
    operator = client_of(acme, "operator")
    url = reverse("operate_quarantine")
    assert "Nothing to review" in operator.get(url).content.decode()
    billed = quarantined(acme, "r1")
    stolen = quarantined(acme, "r2", key_id=make_key(globex)[0].pk)
    quarantined(acme, "r3", tenant_id=2**63, key_id=2**64 - 1)
    page = operator.get(url).content.decode()
    assert "more tokens than its request could" in page
    assert "a key of another tenant" in page and f"tenant {2**63}" in page
    overview = operator.get(reverse("operate")).content.decode()
    assert "3 entries from engines are not billed" in overview
    operator.post(reverse("operate_quarantine-bill", args=[billed.pk]))
    operator.post(reverse("operate_quarantine-dismiss", args=[stolen.pk]))
    assert list(UsageEvent.objects.values_list("id", flat=True)) == ["r1"]
    assert shown(operator.get(url)) == ["r3"]
    assert shown(operator.get(url, {"state": "billed"})) == ["r1"]
    assert shown(operator.get(url, {"state": "dismissed"})) == ["r2"]
    assert shown(operator.get(url, {"state": "all"})) == ["r3", "r2", "r1"]
    again = operator.post(reverse("operate_quarantine-bill", args=[billed.pk]), follow=True)
    assert b"already been billed or dismissed" in again.content


@pytest.mark.parametrize("role", ["owner", "outsider"])
def test_other_roles_cannot_see_or_change_credentials(role: str) -> None:
    tenant = make_tenant("acme")
    client, entry = client_of(tenant, role), quarantined(tenant, "r1")
    credential, _ = EngineCredential.objects.issue(name="gpu-1")
    assert client.get(reverse(CREDENTIALS)).status_code == 404
    assert client.get(reverse("operate_quarantine")).status_code == 404
    for name, pk in (
        ("operate_engines-rotate", credential.pk),
        ("operate_engines-revoke", credential.pk),
        ("operate_quarantine-bill", entry.pk),
        ("operate_quarantine-dismiss", entry.pk),
    ):
        assert client.post(reverse(name, args=[pk])).status_code == 404
