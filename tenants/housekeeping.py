"""Background jobs that keep the ledger's tables in shape."""

from __future__ import annotations

import procrastinate
from django.db import connection
from django.utils import timezone
from procrastinate.contrib.django import app as django_app

from tenants.answers import KEPT_TIME
from tenants.models import IdempotentAnswer

app: procrastinate.App = django_app


@app.periodic(cron="23 * * * *")
@app.task(name="keep_house", queueing_lock="keep_house")
def keep_house(timestamp: int) -> None:
    """Each hour: make the ledger's next month, forget answers that nobody may ask for again, and
    tickets that nobody may show again."""
    make_partitions()
    forget_answers()
    forget_tickets()


def make_partitions() -> None:
    """This month's table and the next one's, ahead of the first request that needs it.

    A writer makes the one that it lacks, after it has failed to write.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tenants_usage_partition(now()),"
            " tenants_usage_partition(now() + interval '1 month')"
        )


def forget_answers() -> None:
    """Answers that were kept for KEPT_TIME: their keys may be used anew."""
    IdempotentAnswer.objects.filter(created_at__lt=timezone.now() - KEPT_TIME).delete()


def forget_tickets() -> None:
    """Those taken an hour ago: their time is over long since."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM tenants_usedticket WHERE used_at < now() - interval '1 hour'")
