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
        "List usage that waits for a decision, or bill or dismiss all of it that the options "
        "choose. The console's page has it one by one, with whom it would be billed to."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("command", choices=["list", "bill", "dismiss"])
        parser.add_argument("--engine", metavar="ID", help="only what this engine reported")
        parser.add_argument("--journal", metavar="ID", help="only what came from this journal")
        parser.add_argument(
            "--reason", choices=sorted(QuarantinedEntry.REASONS), help="only for this reason"
        )
        parser.add_argument("--all", action="store_true", help="everything that is open")

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = {
            "engine_id": options["engine"],
            "journal": options["journal"],
            "reason": options["reason"],
        }
        chosen = {name: value for name, value in chosen.items() if value is not None}
        if not (chosen or options["all"] or options["command"] == "list"):
            raise CommandError("say which: --engine, --journal, --reason or --all.")
        found = QuarantinedEntry.objects.filter(status=Decision.OPEN, **chosen).order_by("pk")
        done = refused = 0
        for entry in found.iterator():
            try:
                self._decide(options["command"], entry)
                done += 1
            except Refused as error:
                self.stderr.write(f"{entry.pk} {entry}: {error.message}")
                refused += 1
        said = {"list": "Open", "bill": "Billed", "dismiss": "Dismissed"}[options["command"]]
        self.stdout.write(f"{said}: {done}.")
        if refused:
            raise CommandError(f"{refused} were refused.", returncode=1)

    def _decide(self, command: str, entry: QuarantinedEntry) -> None:
        if command == "bill":
            decisions.bill(entry, None, None)
        elif command == "dismiss":
            decisions.dismiss(entry, None)
        else:
            tokens = f"{entry.prompt_tokens}+{entry.completion_tokens} tokens"
            self.stdout.write(f"{entry.pk}\t{entry.engine_id}\t{entry}\t{tokens}\t{entry.reason}")
