"""The hourly background job that keeps tables in shape."""

from __future__ import annotations

from datetime import timedelta

import procrastinate
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.db import connection
from django.db.models import Exists, OuterRef
from django.utils import timezone
from procrastinate.contrib.django import app as django_app

from tenants.answers import KEPT_TIME
from tenants.models import (
    EngineHour,
    IdempotentAnswer,
    Invitation,
    RefusedRequest,
    RequestHour,
    RequestMinute,
    RequestScore,
    RequestTag,
    StoredContent,
    TotalHour,
    TotalMinute,
)

app: procrastinate.App = django_app

BATCH = 1000
"""Rows deleted per statement from tables with large rows."""
MINUTES_KEPT = timedelta(days=2)
"""Figures by the minute serve live views, which show the last two hours."""


ENGINE_HOURS_KEPT = timedelta(days=400)
"""A year and a month: the longest period that pages of usage show, and the month before it."""


@app.periodic(cron="23 * * * *")
@app.task(name="keep_house", queueing_lock="keep_house")
def keep_house(timestamp: int) -> None:
    """Each hour: create the ledger's next partition, and delete rows that have expired."""
    make_partitions()
    forget_answers()
    forget_tickets()
    forget_sessions()
    forget_invitations()
    forget_requests()
    forget_content()
    forget_engine_hours()


def make_partitions() -> None:
    """Create this month's table and the next one's, before the first request that needs them.

    A writer whose insert fails because its partition is missing creates it.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tenants_usage_partition(now()),"
            " tenants_usage_partition(now() + interval '1 month')"
        )


def forget_answers() -> None:
    """Delete answers that were kept for KEPT_TIME; their idempotency keys may be used again."""
    IdempotentAnswer.objects.filter(created_at__lt=timezone.now() - KEPT_TIME).delete()


def forget_tickets() -> None:
    """Delete tickets that were used more than an hour ago; they expired long before."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM tenants_usedticket WHERE used_at < now() - interval '1 hour'")


def forget_sessions() -> None:
    """Delete expired sessions; Django itself only stops accepting them."""
    call_command("clearsessions")
    alive = Session.objects.filter(session_key=OuterRef("session_key"))
    UserSession.objects.filter(~Exists(alive)).delete()


def forget_invitations() -> None:
    """Delete invitations that ended a while ago, with the names that they hold."""
    Invitation.objects.long_over().delete()


def forget_requests() -> None:
    """Delete figures of requests, and refused requests with their tags and scores, that
    are older than the settings allow."""
    now = timezone.now()
    hours = now - timedelta(days=settings.HISTORY_DAYS)
    for minutely in (RequestMinute, TotalMinute):
        minutely.objects.filter(at__lt=now - MINUTES_KEPT).delete()
    for hourly in (RequestHour, TotalHour):
        hourly.objects.filter(at__lt=hours).delete()
    refused = now - timedelta(days=settings.REFUSED_REQUESTS_DAYS)
    RefusedRequest.objects.filter(started_at__lt=refused).delete()
    RequestTag.objects.over(refused).delete()
    RequestScore.objects.over(refused).delete()


def forget_content() -> None:
    """Delete prompts and answers whose retention has ended or whose tenant's key was destroyed."""
    while over := list(StoredContent.objects.over().values_list("pk", flat=True)[:BATCH]):
        StoredContent.objects.filter(pk__in=over).delete()


def forget_engine_hours() -> None:
    """Delete engine hours that no page shows any more."""
    EngineHour.objects.filter(hour__lt=timezone.now() - ENGINE_HOURS_KEPT).delete()
