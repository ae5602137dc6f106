"""The inbox: what each role finds there, and what is new to whom."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from tenants.models import Notification, Tenant
from tenants.models.notifications import NotificationKind as Kind
from tests.frontend.clients import client_of
from tests.tenants.making import make_tenant

BUDGET = {"budget": "tokens_per_day", "percent": 80, "used": 80, "limit": 100}
READY = {"adapter": "support", "version": 3}
GONE = {"engine": "gpu-1", "last_seen_at": "2026-11-01T12:00:00+00:00"}


def post(tenant: Tenant | None, kind: Kind = Kind.ADAPTER_READY, data: object = None) -> None:
    """A notification of a moment ago, each older than the next."""
    Notification.objects.post(kind, READY if data is None else data, tenant=tenant)  # type: ignore[arg-type]
    newest = Notification.objects.order_by("-at").first()
    count = Notification.objects.count()
    assert newest is not None
    at = timezone.now() - timedelta(hours=1) + timedelta(seconds=count)
    Notification.objects.filter(pk=newest.pk).update(at=at)


def unread(client: Client, where: str) -> int:
    return int(client.get(where).context["unread"])


def read(client: Client, where: str) -> int:
    newest = Notification.objects.order_by("-at").values_list("pk", flat=True)[0]
    return client.post(f"{where}/read", {"newest": str(newest)}).status_code


@pytest.mark.parametrize(
    ("role", "status", "titles"),
    [("admin", 200, 2), ("owner", 200, 2), ("developer", 200, 1), ("operator", 200, 2),
     ("viewer", 403, 0), ("outsider", 404, 0), ("nobody", 302, 0)],
)  # fmt: skip
def test_each_role_finds_what_it_is_emailed(
    tenant: Tenant, role: str, status: int, titles: int
) -> None:
    post(tenant, Kind.BUDGET_REACHED, BUDGET)
    post(tenant)
    post(tenant, Kind.WEBHOOK_TEST, {})
    post(make_tenant(), data={"adapter": "others", "version": 1})
    page = client_of(tenant, role).get(f"/t/{tenant.slug}/inbox")
    assert page.status_code == status and "others" not in page.text
    assert len(page.context["rows"] if status == 200 else []) == titles
    if titles:
        assert "Version 3 of the adapter support is ready" in page.text
        assert f'href="/t/{tenant.slug}/adapters/support/versions/3"' in page.text
    assert ("80% of a budget is used" in page.text) == (titles == 2)


def test_what_is_read_is_counted_for_each_member(tenant: Tenant) -> None:
    first, second = client_of(tenant, "developer"), client_of(tenant, "admin")
    inbox, where = f"/t/{tenant.slug}/inbox", f"/t/{tenant.slug}/usage"
    for _ in range(3):
        post(tenant)
    post(make_tenant("other"))
    assert unread(first, where) == unread(second, where) == 3
    assert '<span class="count">3' in first.get(where).text
    newest = Notification.objects.filter(tenant=tenant).order_by("-at")[0]
    assert first.post(f"{inbox}/read", {"newest": newest.pk}).status_code == 302
    assert (unread(first, where), unread(second, where)) == (0, 3)
    assert "Mark all as read" not in first.get(inbox).text
    oldest = Notification.objects.filter(tenant=tenant).order_by("at")[0]
    first.post(f"{inbox}/read", {"newest": oldest.pk})
    assert unread(first, where) == 0  # nobody unreads by an old page
    post(tenant)
    assert unread(first, where) == 1


def test_only_ones_own_tenants_notifications_are_marked(tenant: Tenant) -> None:
    client = client_of(tenant, "admin")
    post(make_tenant("other"))
    inbox = f"/t/{tenant.slug}/inbox"
    assert read(client, inbox) == 404
    for newest in ("", "x", str(uuid4())):
        assert client.post(f"{inbox}/read", {"newest": newest}).status_code == 404
    assert client.get(inbox, {"before": "x"}).status_code == 200
    assert client.get(inbox, {"before": str(uuid4())}).status_code == 404


def test_an_operator_is_told_of_the_installation_alone(tenant: Tenant) -> None:
    operator = client_of(tenant, "operator")
    post(tenant)
    post(None, Kind.ENGINE_LOST, GONE)
    page = operator.get("/operate/inbox")
    assert "The engine gpu-1 was lost" in page.text and page.context["unread"] == 1
    assert unread(operator, f"/t/{tenant.slug}/usage") == 0
    assert read(operator, "/operate/inbox") == 302
    assert unread(operator, "/operate/users") == 0
    assert client_of(tenant, "owner").get("/operate/inbox").status_code == 404


def test_it_is_paged(tenant: Tenant) -> None:
    client = client_of(tenant, "developer")
    for _ in range(51):
        post(tenant)
    page = client.get(f"/t/{tenant.slug}/inbox")
    assert len(page.context["rows"]) == 50
    older = client.get(f"/t/{tenant.slug}/inbox", {"before": page.context["last"].pk})
    assert len(older.context["rows"]) == 1


def test_data_of_another_release_is_shown_by_its_kind(tenant: Tenant) -> None:
    post(tenant, Kind.KEY_EXPIRING, {})
    page = client_of(tenant, "developer").get(f"/t/{tenant.slug}/inbox")
    assert "API key expires within a week" in page.text
