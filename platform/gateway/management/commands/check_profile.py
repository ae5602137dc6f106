"""`manage.py check_profile`: it runs without Django; this lists it in `help`."""

from __future__ import annotations

from django.core.management.base import BaseCommand

from gateway.local.profile_check import main


class Command(BaseCommand):
    help = "Prove that engines with a profile answer as it promises, and measure them."

    def run_from_argv(self, argv: list[str]) -> None:
        main(argv[2:])
