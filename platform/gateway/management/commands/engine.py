"""`manage.py engine`: one engine agent. It runs without Django; this lists it in `help`."""

from __future__ import annotations

from django.core.management.base import BaseCommand

from inference.agent.__main__ import main


class Command(BaseCommand):
    help = "Run one engine agent, which embeds vLLM and dials the gateways."

    def run_from_argv(self, argv: list[str]) -> None:
        main(argv[2:])
