"""`manage.py export_tenant`: everything that a tenant has, in one archive."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants.models import AuditEntry, Tenant
from tenants.offboarding import exports


class Command(BaseCommand):
    help = (
        "Write everything that a tenant has to one ZIP (docs/accounts.md): rows as JSON Lines, "
        "files of adapters and batches, signed receipts. Stored prompts and answers are in it in "
        "plain text."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("slug", help="the tenant")
        parser.add_argument(
            "--out", type=Path, required=True, help="the file to write; it must not exist"
        )
        parser.add_argument(
            "--without-content",
            action="store_true",
            help="leave out what only members read: stored prompts and answers, conversations, "
            "saved prompts",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        out, content = options["out"], not options["without_content"]
        tenant = Tenant.objects.filter(slug=options["slug"]).first()
        if tenant is None:
            raise CommandError(f"There is no tenant {options['slug']}.", returncode=1)
        if out.exists():
            raise CommandError(f"{out} exists already.", returncode=1)
        order = exports.ExportOrder(tenant, "the command line", content)
        try:
            with TemporaryDirectory(dir=out.parent, prefix=".export-") as place:
                draft = Path(place) / out.name
                draft.touch(mode=0o600)
                with draft.open("wb") as file:
                    exports.write(order, file, self.stdout.write)
                draft.rename(out)
        except OSError as error:
            raise CommandError(str(error), returncode=1) from None
        AuditEntry.objects.note(None, tenant, "created", str(out)[-255:], kind="export")
        self.stdout.write(f"Exported {tenant.slug}: {out}")
