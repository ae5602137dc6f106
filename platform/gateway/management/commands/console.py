"""`manage.py console`: one console process."""

from __future__ import annotations

import tempfile
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.connections import kept_connections
from gateway.planes.control import ControlParts, application
from gateway.planes.server import NotStarted, serve
from gateway.schema import require_migrated
from gateway.secret_links import without_tokens
from inference.process.logs import configure

GRACEFUL_S = 10
"""How long running requests may take to finish after the process was asked to stop."""


class Command(BaseCommand):
    help = (
        "Run one console process: pages, management API, uploads and sign-in. Any number "
        "of them may run behind a load balancer. It queries the gateways for the state of "
        "engines."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--host", default="127.0.0.1", help="address to listen on (%(default)s)"
        )
        parser.add_argument(
            "--port", type=int, default=8001, help="port to listen on (%(default)s)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        require_migrated()
        tempfile.tempdir = settings.FILE_UPLOAD_TEMP_DIR  # where Django spools request bodies
        configure(f"console:{options['port']}", settings.LOG_LEVEL, clean=without_tokens)
        console = application(ControlParts.configured())
        try:
            with kept_connections():
                serve(console, options["host"], options["port"], graceful_s=GRACEFUL_S, ws="none")
        except NotStarted:
            raise CommandError("The console could not start. See the log for the reason.") from None
