"""`manage.py backup`: everything that an installation has to keep, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway import backups


class Command(BaseCommand):
    help = (
        "Write the database, adapters, tenants' files, engines' journals on this machine and the "
        "secrets that they need to one tar, while the installation runs (docs/operate.md). Who "
        "has the archive has everything: keep it as safe as the secrets."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("archive", type=Path, help="the file to write; it must not exist")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            at = backups.back_up(options["archive"], self.stdout.write)
        except backups.BackupFailed as error:
            raise CommandError(str(error), returncode=1) from None
        self.stdout.write(f"Backup of {at}: {options['archive']}")
