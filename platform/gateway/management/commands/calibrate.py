"""`manage.py calibrate`: it runs without Django; this lists it in `help`."""

from __future__ import annotations

from django.core.management.base import BaseCommand

from gateway.local.calibrate import main


class Command(BaseCommand):
    help = "Measure how fast an engine is, for `manage.py plan --speed`."

    def run_from_argv(self, argv: list[str]) -> None:
        main(argv[2:])
