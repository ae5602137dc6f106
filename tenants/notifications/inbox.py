"""Notifications in the console: those of a tenant, or of the installation, and which of them a
person has not read."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db.models import Count, DateTimeField, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Greatest

from tenants.models import Notification, ReadMark, Role, Tenant, User
from tenants.models.notifications import OF_TENANTS, NotificationKind
from tenants.notifications import mail

MOST = 100
"""Unread ones are counted up to this."""
LONG_AGO = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


def kinds_for(tenant: Tenant | None, role: Role | None) -> list[NotificationKind]:
    """The kinds that a person in this role sees; an operator, who has none, sees all."""
    return mail.kinds_of(tenant, role) if tenant is None or role else list(OF_TENANTS)


def shown(tenant: Tenant | None, kinds: Collection[NotificationKind]) -> QuerySet[Notification]:
    """The notifications of these kinds, the newest first."""
    return Notification.objects.filter(tenant=tenant, kind__in=kinds).order_by("-at", "-pk")


def unread(user: User, tenant: Tenant | None, kinds: Collection[NotificationKind]) -> Coalesce:
    """How many of them the user has not read, up to MOST: a column of any query."""
    mark = ReadMark.objects.filter(user=user, tenant=tenant).values("until")[:1]
    until = Coalesce(Subquery(mark), Value(LONG_AGO, DateTimeField()))
    some = shown(tenant, kinds).order_by().filter(at__gt=until).values("pk")[:MOST]
    counted = Notification.objects.order_by().filter(pk__in=some).annotate(all=Value(1))
    return Coalesce(Subquery(counted.values("all").annotate(n=Count("pk")).values("n")), 0)


def read_until(user: User, tenant: Tenant | None) -> datetime:
    """Up to when the user has read the notifications."""
    mark = ReadMark.objects.filter(user=user, tenant=tenant).first()
    return mark.until if mark else LONG_AGO


def mark_read(user: User, newest: Notification) -> None:
    """Note that the user has read this notification and all before it."""
    ReadMark.objects.update_or_create(
        user=user,
        tenant=newest.tenant,
        defaults={"until": Greatest("until", Value(newest.at, DateTimeField()))},
        create_defaults={"until": newest.at},
    )
