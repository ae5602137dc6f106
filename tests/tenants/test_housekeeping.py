"""What the hourly job deletes, and what it leaves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import connection
from django.utils import timezone

from tenants import housekeeping
from tenants.models import Invitation, Role, Tenant
from tenants.models.invitations import KEPT_FOR

pytestmark = pytest.mark.django_db


def test_expired_sessions_go(tenant: Tenant) -> None:
    now = timezone.now()
    for name, expires in (("old", now - timedelta(minutes=1)), ("new", now + timedelta(hours=1))):
        Session.objects.create(session_key=name * 10, session_data="", expire_date=expires)
    housekeeping.keep_house(0)
    assert [row.session_key for row in Session.objects.all()] == ["new" * 10]


@pytest.mark.parametrize(
    ("ended", "kept"),
    [
        ({}, True),
        ({"accepted_at": timedelta(days=1)}, True),
        ({"expires_at": timedelta(days=1)}, True),
        ({"accepted_at": KEPT_FOR + timedelta(days=1)}, False),
        ({"withdrawn_at": KEPT_FOR + timedelta(days=1)}, False),
        ({"expires_at": KEPT_FOR + timedelta(days=1)}, False),
    ],
)
def test_invitations_go_a_month_after_their_end(
    tenant: Tenant, ended: dict[str, Any], kept: bool
) -> None:
    Invitation.objects.invite(tenant, role=Role.VIEWER, note="Bo", by=None)
    Invitation.objects.update(**{name: timezone.now() - ago for name, ago in ended.items()})
    housekeeping.keep_house(0)
    assert Invitation.objects.exists() == kept


def test_tickets_that_were_taken_long_ago_go() -> None:
    with connection.cursor() as cursor:
        for age in ("2 hours", "1 minute"):
            cursor.execute(
                "INSERT INTO tenants_usedticket (id, used_at)"
                " VALUES (gen_random_uuid()::text, now() - %s::interval)", [age],
            )  # fmt: skip
        housekeeping.keep_house(0)
        cursor.execute("SELECT count(*) FROM tenants_usedticket")
        assert cursor.fetchone() == (1,)
