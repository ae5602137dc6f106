"""`manage.py reconcile`: compare the ledger with the engines' counts, and with itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import IO, Any, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tenants.billing import reconciliation
from tenants.billing.drift import Drift
from tenants.billing.reconciliation import Difference, JournalDifference
from tenants.models.usage.sums import FIGURES
from tenants.naming import DAY, MONTH
from tenants.utc import month_start

WIDTH = 160
"""Columns of a table, wide enough that nothing wraps; also when written to a file."""
JOURNALS = (
    "engine", "journal", "reported", "counted", "waiting", "ledger", "quarantined", "drift",
    "unjournaled",
)  # fmt: skip
GROUP = ("key", "adapter", "model", "base model")
HOURS = ("tenant", "hour", *GROUP, "differs: events / sums")
MONTHS = ("tenant", "month", *GROUP, "differs: hours / sums")
TOTALS = ("tenant", "begins", *GROUP, "differs: hours / sums")


class Command(BaseCommand):
    help = (
        "Compare the ledger with the engines' journals and, with --check-rollups, the "
        "ledger's sums with its events. The exit status is 0 if all agree, 1 if anything "
        "differs."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--check-rollups",
            action="store_true",
            help="also check the sums, which reads every event",
        )
        parser.add_argument(
            "--accept",
            metavar="JOURNAL",
            help="accept this journal's drift as explained, for example after restoring a backup",
        )
        parser.add_argument(
            "--since",
            type=_hour,
            metavar="TIME",
            help="first hour to check, in UTC, such as 2026-05-01T12",
        )
        parser.add_argument(
            "--until", type=_hour, metavar="TIME", help="end of the period to check (exclusive)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        since, until = options["since"], options["until"]
        if (since or until) and not options["check_rollups"]:
            raise CommandError("--since and --until require --check-rollups.")
        if since and until and since >= until:
            raise CommandError("--until must be later than --since.")
        if options["accept"]:
            self._accept(options["accept"])
        self._console = Console(file=cast(IO[str], self.stdout), width=WIDTH, highlight=False)
        found = self._check_journals()
        if options["check_rollups"]:
            found += self._check_rollups(since, until)
        if found:
            raise CommandError(f"Differences found: {found}.", returncode=1)
        self.stdout.write("All agree.")

    def _accept(self, journal: str) -> None:
        found = [drift for drift in reconciliation.drifts() if drift.journal.journal == journal]
        if not any(found):
            raise CommandError(f"there is no journal {journal!r} with drift.")
        reconciliation.accept(found[0])
        amounts = f"{found[0].requests} requests and {found[0].tokens} tokens"
        self.stdout.write(f"Accepted: {amounts} of the journal {journal}.")

    def _check_journals(self) -> int:
        drifts = reconciliation.drifts()
        title = "Requests/tokens of the engines' journals; drift: counted but not in the ledger"
        self._show(title, JOURNALS, map(_journal, drifts))
        return sum(map(bool, drifts))

    def _check_rollups(self, since: datetime | None, until: datetime | None) -> int:
        progress = Console(stderr=True)
        with reconciliation.snapshot():
            months = reconciliation.months(since, until)
            hours = [
                difference
                for start, end in track(months, "Adding up events", console=progress)
                for difference in reconciliation.rollup_differences(start, end)
            ]
            whole = [
                (start, end)
                for start, end in months
                if (start, end) == (month_start(start), month_start(end))
            ]
            of_months = [
                difference
                for start, end in whole
                for difference in reconciliation.month_differences(start, end)
            ]
            totals = [
                difference
                for start, end in whole
                for span in (DAY, MONTH)
                for difference in reconciliation.total_differences(span, start, end)
            ]
            # A journal's sums are not kept by time.
            journals = [] if since or until else reconciliation.journal_differences()
        if hours:
            self._show("Sums that differ from their events", HOURS, map(_hours, hours))
        if of_months:
            title = "Sums of months that differ from those of their hours"
            self._show(title, MONTHS, map(_month, of_months))
        if totals:
            title = "Sums of tenants' days and months that differ from those of their hours"
            self._show(title, TOTALS, map(_day, totals))
        if journals:
            columns = ("journal", "differs: events / sums")
            self._show(
                "Journals that differ from their events", columns, map(_journal_sums, journals)
            )
        return len(hours) + len(of_months) + len(totals) + len(journals)

    def _show(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        table = Table(*columns, title=title)
        for row in rows:
            table.add_row(*row)
        self._console.print(table, markup=False)


def _hour(text: str) -> datetime:
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-05-01T12") from None
    hour = given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)
    if hour != hour.replace(minute=0, second=0, microsecond=0):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole hour; usage is summed by the hour"
        )
    return hour


def _journal(drift: Drift) -> Sequence[str]:
    of = drift.journal
    reported = f"{of.reported_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if of.reported_at else "never"
    counted_tokens = of.counted_prompt_tokens + of.counted_completion_tokens
    ledger_tokens = of.ledger_prompt_tokens + of.ledger_completion_tokens
    return (
        of.engine_id,
        of.journal,
        reported,
        f"{of.counted_requests}/{counted_tokens}",
        str(of.waiting_requests),
        f"{of.ledger_requests}/{ledger_tokens}",
        f"{of.quarantined_requests}/{of.quarantined_tokens}",
        f"{drift.requests}/{drift.tokens}",
        str(drift.unjournaled_tokens),
    )


def _hours(difference: Difference) -> Sequence[str]:
    return _sums(difference, "%Y-%m-%d %Hh")


def _day(difference: Difference) -> Sequence[str]:
    return _sums(difference, "%Y-%m-%d")


def _month(difference: Difference) -> Sequence[str]:
    return _sums(difference, "%Y-%m")


def _sums(difference: Difference, shown: str) -> Sequence[str]:
    tenant_id, start, key_id, *names = difference.group
    figures = _differing(FIGURES, difference.parts, difference.kept)
    return str(tenant_id), f"{start.astimezone(UTC):{shown}}", str(key_id), *names, figures


def _journal_sums(difference: JournalDifference) -> Sequence[str]:
    names = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    return difference.journal, _differing(names, difference.events, difference.ledger)


def _differing(names: Sequence[str], events: Sequence[int], sums: Sequence[int]) -> str:
    pairs = zip(names, events, sums, strict=True)
    return ", ".join(f"{name} {a} / {b}" for name, a, b in pairs if a != b)
