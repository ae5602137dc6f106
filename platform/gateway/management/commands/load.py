"""`manage.py load`: it runs without Django; this lists it in `help`."""

from __future__ import annotations

from django.core.management.base import BaseCommand

from gateway.local.load import main


class Command(BaseCommand):
    help = "Send traffic like the real one to an OpenAI endpoint, and measure its answers."

    def run_from_argv(self, argv: list[str]) -> None:
        main(argv[2:])
