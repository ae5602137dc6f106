"""`manage.py gateway`: one gateway process. It runs without Django's applications; this lists it in
`help`."""

from __future__ import annotations

from django.core.management.base import BaseCommand

from gateway.planes.process import HELP, main


class Command(BaseCommand):
    help = HELP

    def run_from_argv(self, argv: list[str]) -> None:
        main(argv[2:])
