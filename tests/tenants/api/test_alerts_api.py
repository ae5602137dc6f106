"""Alert rules over the management API."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.models import AlertRule, Tenant
from tests.tenants.callers import person
from tests.tenants.making import make_tenant
from tests.tenants.notifications.test_alerts import rule

pytestmark = pytest.mark.django_db

NEW = {
    "name": "slow", "metric": "ttft_p95", "threshold": 900.0, "minutes": 5, "min_requests": 20,
}  # fmt: skip


def test_a_rule_from_its_making_to_its_end(tenant: Tenant) -> None:
    ask, admin = person(tenant, "admin")
    made = ask("POST", "alert-rules", NEW).json()
    assert (made["created_by"], made["raised_at"]) == (admin.username, None)
    assert made.items() >= NEW.items()
    where = f"alert-rules/{made['id']}"
    assert ask("PATCH", where, {"threshold": 500}).json()["threshold"] == 500.0
    assert ask("PATCH", where, {"metric": "error_share"}).status_code == 400
    assert [one["id"] for one in ask("GET", "alert-rules").json()["results"]] == [made["id"]]
    assert ask("DELETE", where).status_code == 204
    assert not AlertRule.objects.exists()
    other = rule(make_tenant("other"))
    for method in ("GET", "PATCH", "DELETE"):
        assert ask(method, f"alert-rules/{other.pk}", {}).status_code == 404


@pytest.mark.parametrize(
    ("change", "field"),
    [({"threshold": -1}, "threshold"), ({"threshold": 600_001}, "threshold"),
     ({"metric": "error_share", "threshold": 100}, "threshold"), ({"metric": "cost"}, "metric"),
     ({"minutes": 0}, "minutes"), ({"minutes": 61}, "minutes"),
     ({"min_requests": 0}, "min_requests"), ({"name": ""}, "name"),
     ({"raised_at": None}, "raised_at")],
)  # fmt: skip
def test_an_invalid_rule_is_refused(tenant: Tenant, change: dict[str, Any], field: str) -> None:
    ask, _ = person(tenant, "owner")
    refused = ask("POST", "alert-rules", NEW | change)
    assert refused.status_code == 400
    assert [one["field"] for one in refused.json()["errors"]] == [field]
    assert not AlertRule.objects.exists()
