"""`manage.py check_isolation`: check that no tenant affects another."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants import isolation
from tenants.models import BaseModel, IsolationCheck

POLL_S = 3.0


class Command(BaseCommand):
    help = (
        "Send requests to each base model and to two adapters with random weights, alone "
        "and concurrently, and compare the answers. Needs a running gateway, worker and "
        "engine. The exit status is 0 if nothing leaks."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--wait", type=float, default=300, metavar="SECONDS",
            help="how long to wait until the check's own adapters are validated (%(default)s)",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        until = time.monotonic() + options["wait"]
        found = [self._check(base, until) for base in isolation.checkable()]
        if not found:
            raise CommandError("There is no base model. Connect an engine first.", returncode=1)
        for check in found:
            engines = ", ".join(check.engines) or "no engine"
            self.stdout.write(f"{check.base_model} on {engines}: {check.state}")
            for finding in check.findings:
                self.stdout.write(f"  {finding}")
        if not all(check.passed for check in found):
            raise CommandError("The isolation check did not pass.", returncode=1)

    def _check(self, base: BaseModel, until: float) -> IsolationCheck:
        while True:
            try:
                return isolation.check(base)
            except isolation.NotReady as reason:
                if time.monotonic() > until:
                    raise CommandError(str(reason), returncode=1) from reason
            time.sleep(POLL_S)
