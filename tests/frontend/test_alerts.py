"""The page of alert rules: who sees and changes them."""

from __future__ import annotations

import pytest

from tenants.models import AlertRule, Tenant
from tests.frontend.clients import client_of
from tests.tenants.making import make_tenant
from tests.tenants.notifications.test_alerts import rule

NEW = {
    "name": "slow", "metric": "ttft_p95", "threshold": "900", "minutes": "5", "min_requests": "9",
}  # fmt: skip


@pytest.mark.parametrize(
    ("role", "sees", "edits"),
    [("owner", 200, 302), ("admin", 200, 302), ("operator", 200, 302), ("developer", 200, 403),
     ("viewer", 403, 403), ("outsider", 404, 404), ("nobody", 302, 302)],
)  # fmt: skip
def test_who_sees_and_changes_rules(tenant: Tenant, role: str, sees: int, edits: int) -> None:
    client, known, where = client_of(tenant, role), rule(tenant), f"/t/{tenant.slug}/alerts"
    page = client.get(where)
    assert page.status_code == sees
    assert ("data-opens=" in page.text and 'id="new-rule"' in page.text) == (
        edits == 302 and role != "nobody"
    )
    assert client.post(f"{where}/{known.pk}/change", NEW).status_code == edits
    assert client.post(where, NEW).status_code == edits
    assert client.post(f"{where}/{known.pk}/remove").status_code == edits
    changed = edits == 302 and role != "nobody"
    names = list(AlertRule.objects.values_list("name", flat=True))
    assert names == (["slow"] if changed else ["errors"])


def test_mistakes_are_shown_in_the_dialog_and_nothing_is_changed(tenant: Tenant) -> None:
    admin, known, where = client_of(tenant, "admin"), rule(tenant), f"/t/{tenant.slug}/alerts"
    wrong = NEW | {"metric": "error_share", "threshold": "100"}
    for to in (where, f"{where}/{known.pk}/change"):
        page = admin.post(to, wrong)
        assert page.status_code == 422 and "Must be below 100 percent" in page.text
        assert page.text.count(" open>") == 1
    assert list(AlertRule.objects.values_list("threshold", flat=True)) == [5.0]
    assert admin.post(where, NEW | {"minutes": "61", "threshold": "nan"}).status_code == 422


def test_another_tenants_rule_does_not_exist(tenant: Tenant) -> None:
    admin, other = client_of(tenant, "admin"), rule(make_tenant("other"))
    for what in ("change", "remove"):
        where = f"/t/{tenant.slug}/alerts/{other.pk}/{what}"
        assert admin.post(where, NEW).status_code == 404
    assert AlertRule.objects.get() == other
