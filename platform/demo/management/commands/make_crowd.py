"""`manage.py make_crowd`: fill an installation with the rows of a busy one."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection, transaction
from django.utils import timezone
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from demo.crowd import Size, kept, outcomes, usage
from demo.crowd.rows import BASES, Rows
from tenants.models import Tenant

TABLES = (
    "tenant", "user", "membership", "invitation", "apikey", "adapter", "adapterversion", "alias",
    "limitset", "price", "conversation", "auditactor", "auditentry", "usageevent", "usagerollup",
    "usagemonth", "usagetotal", "enginejournal", "requestminute", "requesthour", "totalminute",
    "totalhour", "refusedrequest", "savedprompt", "promptset", "setrun", "target", "notification",
    "delivery", "contentkey", "storedcontent", "supersededattempt",
)  # fmt: skip


class Command(BaseCommand):
    help = (
        "Make up what a busy installation has: tenants, members, keys, adapters with versions in "
        "all states, limits, prices, thirteen months of usage with its sums, an audit log, "
        "webhooks, prompts. For looking at pages and measuring them. Only rows: these adapters "
        "cannot be served, and nothing of it can be taken back. Ten million events take a few "
        "minutes and 7 GB."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenants", type=_count, default=1_000, help="(%(default)s)")
        parser.add_argument("--adapters", type=_count, default=10_000, help="(%(default)s)")
        parser.add_argument("--events", type=_count, default=10_000_000, help="(%(default)s)")
        parser.add_argument(
            "--audit-entries",
            type=_count,
            default=300_000,
            help="older entries of the audit log (%(default)s)",
        )
        parser.add_argument(
            "--seed", type=int, default=1, help="another seed gives other rows (%(default)s)"
        )
        parser.add_argument(
            "--into-existing",
            action="store_true",
            help="continue if there are tenants already; they cannot be told apart later",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if Tenant.objects.exists() and not options["into_existing"]:
            raise CommandError(
                "This installation has tenants. A crowd cannot be taken out again: use an empty "
                "one, or --into-existing."
            )
        size = Size(
            options["tenants"],
            options["adapters"],
            options["events"],
            options["audit_entries"],
            timezone.now().replace(minute=0, second=0, microsecond=0),
            options["seed"],
        )
        make(size)
        self.stdout.write(self.style.SUCCESS(f"{size.tenants} tenants, the first is crowd-0000."))


def make(size: Size) -> None:
    """Make everything or nothing, showing progress, and then update PostgreSQL's statistics.

    Raises:
        IntegrityError: there is a crowd already.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("tenants and what is theirs", total=None)

        def report(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        with transaction.atomic():
            tenants = Rows(size).make()
            usage.make(size, [tenant.pk for tenant in tenants], BASES, report)
            report("outcomes", 0, 1)
            outcomes.make(size, [tenant.pk for tenant in tenants])
            kept.make(size, tenants)
        report("statistics", 0, 1)
        _analyze()
        report("statistics", 1, 1)


def _analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM ANALYZE {', '.join(f'tenants_{name}' for name in TABLES)}")


def _count(text: str) -> int:
    count = int(text.replace("_", "").replace(",", ""))
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} is not a count")
    return count
