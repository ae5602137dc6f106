"""`manage.py rewrap_content_keys`: encrypt the keys of stored prompts with a new CONTENT_KEY."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from tenants.content import choice, rotation


class Command(BaseCommand):
    help = (
        "Encrypt the keys of stored prompts and answers anew by CONTENT_KEY, whether that or "
        "CONTENT_KEY_PREVIOUS encrypted them. Afterwards CONTENT_KEY_PREVIOUS is not needed any "
        "more (docs/content.md)."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        if not choice.is_possible():
            raise CommandError("CONTENT_KEY is not set.")
        rotated = rotation.rewrap()
        self.stdout.write(f"Encrypted by CONTENT_KEY: {rotated.keys}.")
        if rotated.unreadable:
            raise CommandError(
                f"Neither CONTENT_KEY nor CONTENT_KEY_PREVIOUS opens the keys of "
                f"{', '.join(rotated.unreadable)}.",
                returncode=1,
            )
