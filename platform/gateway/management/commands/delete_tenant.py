"""`manage.py delete_tenant`: suspend a tenant, and delete it after the grace period or now."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants.errors import Refused
from tenants.models import Tenant, TenantDeletion
from tenants.offboarding import deletion


class Command(BaseCommand):
    help = (
        "Suspend a tenant and have workers delete it after LORIKEET_DELETION_GRACE_DAYS "
        "(docs/accounts.md). Of a tenant that is deleted, print the signed receipt."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("slug", help="the tenant")
        parser.add_argument("--confirm", help="the slug again, instead of typing it when asked")
        when = parser.add_mutually_exclusive_group()
        when.add_argument(
            "--now", action="store_true", help="delete it now, without a grace period"
        )
        when.add_argument(
            "--take-back", action="store_true", help="keep a tenant that is not deleted yet"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        tenant = Tenant.objects.filter(slug=options["slug"]).first()
        if tenant is None:
            raise CommandError(f"There is no tenant {options['slug']}.", returncode=1)
        asked = TenantDeletion.objects.of(tenant)
        try:
            if options["take_back"]:
                self._take_back(tenant, asked)
            elif asked is None or not asked.ended_at:
                self._delete(tenant, asked, options)
            else:
                self.stdout.write(json.dumps(asked.signed, indent=2))
        except Refused as refused:
            raise CommandError(refused.message, returncode=1) from None

    def _take_back(self, tenant: Tenant, asked: TenantDeletion | None) -> None:
        if asked is None:
            raise CommandError(f"{tenant.slug} is not to be deleted.", returncode=1)
        asked.take_back()
        self.stdout.write(f"{tenant.slug} will not be deleted.")

    def _delete(
        self, tenant: Tenant, asked: TenantDeletion | None, options: dict[str, Any]
    ) -> None:
        now = options["now"]
        if asked is None or now:
            self._confirm(tenant, options["confirm"])
        if asked is None:
            grace = timedelta(days=0 if now else settings.DELETION_GRACE_DAYS)
            asked = TenantDeletion.objects.ask(
                tenant, by="the command line", by_operator=True, grace=grace
            )
        if now:
            asked.hasten()
            deletion.run(asked, self.stdout.write)
            self.stdout.write(json.dumps(asked.signed, indent=2))
        else:
            self.stdout.write(f"{tenant.slug} will be deleted on {asked.due_at:%Y-%m-%d}.")

    def _confirm(self, tenant: Tenant, given: str | None) -> None:
        typed = input(f"Type {tenant.slug} to delete it: ") if given is None else given
        if typed != tenant.slug:
            raise CommandError(f"Not confirmed: {tenant.slug} stays as it is.", returncode=1)
