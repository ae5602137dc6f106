"""`manage.py scaledown`: chooses which engine Kubernetes stops first. It runs without Django; this
lists it in `help`."""

from __future__ import annotations

from django.core.management.base import BaseCommand

from gateway.scaling.kubernetes import HELP, main


class Command(BaseCommand):
    help = HELP

    def run_from_argv(self, argv: list[str]) -> None:
        main(argv[2:])
