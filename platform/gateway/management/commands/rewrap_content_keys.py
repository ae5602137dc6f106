"""`manage.py rewrap_content_keys`: encrypt the keys of stored prompts with a new CONTENT_KEY."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from tenants.content import retention, rotation


class Command(BaseCommand):
    help = (
        "Re-encrypt the keys of stored prompts and answers with LORIKEET_CONTENT_KEY, whether they "
        "are encrypted with that or with CONTENT_KEY_PREVIOUS. Afterwards "
        "LORIKEET_CONTENT_KEY_PREVIOUS is no longer needed (docs/content.md)."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        if not retention.is_possible():
            raise CommandError("LORIKEET_CONTENT_KEY is not set.")
        rotated = rotation.rewrap()
        self.stdout.write(f"Keys encrypted with LORIKEET_CONTENT_KEY: {rotated.keys}.")
        if rotated.unreadable:
            raise CommandError(
                "Neither LORIKEET_CONTENT_KEY nor LORIKEET_CONTENT_KEY_PREVIOUS decrypts the keys "
                f"of {', '.join(rotated.unreadable)}.",
                returncode=1,
            )
