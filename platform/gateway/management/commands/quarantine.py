"""`manage.py quarantine`: decide on many reported entries that no gateway dispatched."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants.billing import decisions
from tenants.errors import Refused
from tenants.models import QuarantinedEntry
from tenants.models.fleet.quarantine import Decision


class Command(BaseCommand):
    help = (
        "List quarantined usage, or bill or dismiss all entries that the options select. "
        "The console shows each entry with the tenant to which it would be billed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("command", choices=["list", "bill", "dismiss"])
        parser.add_argument("--engine", metavar="ID", help="only entries that this engine reported")
        parser.add_argument("--journal", metavar="ID", help="only entries of this journal")
        parser.add_argument(
            "--reason",
            choices=sorted(QuarantinedEntry.REASONS),
            help="only entries with this reason",
        )
        parser.add_argument("--all", action="store_true", help="all open entries")

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = {
            "engine_id": options["engine"],
            "journal": options["journal"],
            "reason": options["reason"],
        }
        chosen = {name: value for name, value in chosen.items() if value is not None}
        if not (chosen or options["all"] or options["command"] == "list"):
            raise CommandError("select entries with --engine, --journal, --reason or --all.")
        found = QuarantinedEntry.objects.filter(status=Decision.OPEN, **chosen).order_by("pk")
        done = refused = 0
        for entry in found.iterator():
            try:
                self._decide(options["command"], entry)
                done += 1
            except Refused as error:
                self.stderr.write(f"{entry.pk} {entry}: {error.message}")
                refused += 1
        label = {"list": "Open", "bill": "Billed", "dismiss": "Dismissed"}[options["command"]]
        self.stdout.write(f"{label}: {done}.")
        if refused:
            raise CommandError(f"Entries refused: {refused}.", returncode=1)

    def _decide(self, command: str, entry: QuarantinedEntry) -> None:
        if command == "bill":
            decisions.bill(entry, None, None)
        elif command == "dismiss":
            decisions.dismiss(entry, None)
        else:
            tokens = f"{entry.prompt_tokens}+{entry.completion_tokens} tokens"
            self.stdout.write(f"{entry.pk}\t{entry.engine_id}\t{entry}\t{tokens}\t{entry.reason}")
