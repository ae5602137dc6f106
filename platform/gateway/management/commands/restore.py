"""`manage.py restore`: an installation from its backup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway import backups


class Command(BaseCommand):
    help = (
        "Restore an archive of `manage.py backup` into an installation without data: an empty "
        "database and empty folders (docs/operate.md). Start nothing else meanwhile."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("archive", type=Path, help="the archive")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            at = backups.restore(options["archive"], self.stdout.write)
        except backups.BackupFailed as error:
            raise CommandError(str(error), returncode=1) from None
        self.stdout.write(
            f"Restored the backup of {at}. Its secrets are in "
            f"{settings.VAR / backups.KEPT_SECRETS}: processes that get theirs elsewhere need "
            "them there. Then run `manage.py migrate`."
        )
